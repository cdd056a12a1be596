"""Whether an optimizer may keep its state in these numbers, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe
from sim.recipe.sections import StateTable

KEY = "training.optimizer_state"
OWN = ("none", "remainder", "bf16")
"""Master copies that only extend 16-bit weights, or are the weights themselves."""


def check(recipe: Recipe) -> None:
    """Raise InputError for a state that does not go with the weights or with the other keys."""
    training, state = recipe.training, recipe.training.optimizer_state
    if training.foreach and (state or training.optimizer != "adam" or training.offload):
        raise InputError(
            "training.foreach = true is Adam in fp32 on the GPU; leave it out, or training."
            f"{'optimizer_state' if state else 'offload' if training.offload else 'optimizer'}"
        )
    if state is None:
        return
    if training.optimizer != "adam":
        raise InputError(
            f'{KEY} is for training.optimizer = "adam", not "{training.optimizer}"; leave it out'
        )
    _master(state.master, training.dtype)
    if training.fp8 and training.fp8.params and state.master in OWN:
        raise InputError(
            f'{KEY}.master = "{state.master}" needs weights of 16 bits, and training.fp8.params = '
            'true keeps them in fp8; "fp32" would do'
        )
    if training.offloaded.optimizer:
        _host(state)


def _master(master: str, dtype: str) -> None:
    """Check that a copy has more bits than the weights, or is in another 16-bit format."""
    able = {"fp32": ("fp32", "none"), "fp16": ("fp32", "fp16", "none")}.get(dtype)
    if able and master not in able:
        choices = " or ".join(f'"{name}"' for name in able)
        raise InputError(
            f'{KEY}.master = "{master}" does not go with training.dtype = "{dtype}"; {choices} '
            "would do"
        )


def _host(state: StateTable) -> None:
    """Check the number formats that Adam on the CPU can have."""
    moments = ("fp32", "bf16")
    for name, able in {"master": ("fp32",), "first": moments, "second": moments}.items():
        said = getattr(state, name)
        if said not in able:
            choices = " or ".join(f'"{one}"' for one in able)
            raise InputError(
                f'{KEY}.{name} = "{said}" is not simulated with training.offload of the optimizer; '
                f"{choices} would do"
            )
