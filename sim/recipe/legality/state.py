"""Whether an optimizer may keep its state in these numbers, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe

KEY = "training.optimizer_state"


def check(recipe: Recipe) -> None:
    """Raise InputError for a state that does not go with the weights or with the other keys."""
    training, state = recipe.training, recipe.training.optimizer_state
    if training.foreach and (state or training.optimizer != "adam"):
        raise InputError(
            "training.foreach = true is Adam in fp32 on the GPU; leave it out, or training."
            f"{'optimizer_state' if state else 'optimizer'}"
        )
    if state is None:
        return
    if training.optimizer != "adam":
        raise InputError(
            f'{KEY} is for training.optimizer = "adam", not "{training.optimizer}"; leave it out'
        )
    _master(state.master, training.dtype)


def _master(master: str, dtype: str) -> None:
    """Check that a copy has more bits than the weights, or is in another 16-bit format."""
    able = {"fp32": ("fp32", "none"), "fp16": ("fp32", "fp16", "none")}.get(dtype)
    if able and master not in able:
        choices = " or ".join(f'"{name}"' for name in able)
        raise InputError(
            f'{KEY}.master = "{master}" does not go with training.dtype = "{dtype}"; {choices} '
            "would do"
        )
