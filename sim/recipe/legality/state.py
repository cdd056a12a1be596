"""May an optimizer keep its state in these numbers? Each check says in one sentence why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe
from sim.recipe.sections import StateTable

KEY = "training.optimizer_state"
OWN = ("none", "remainder", "bf16")
"""Masters that lean on weights of 16 bits, or are them."""


def check(recipe: Recipe) -> None:
    """Raise InputError for a state that does not go with the weights, or with the other keys."""
    training, state = recipe.training, recipe.training.optimizer_state
    if state is None:
        return
    if training.optimizer != "adam":
        raise InputError(
            f'{KEY} needs training.optimizer = "adam", whose state it is, and not '
            f'"{training.optimizer}"; leave it out'
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
    """A copy is of more bits than the weights, or of other 16."""
    able = {"fp32": ("fp32", "none"), "fp16": ("fp32", "fp16", "none")}.get(dtype)
    if able and master not in able:
        choices = " or ".join(f'"{name}"' for name in able)
        raise InputError(
            f'{KEY}.master = "{master}" does not go with training.dtype = "{dtype}"; {choices} '
            "would do"
        )


def _host(state: StateTable) -> None:
    """What Adam of the CPU takes."""
    moments = ("fp32", "bf16")
    for name, able in {"master": ("fp32",), "first": moments, "second": moments}.items():
        said = getattr(state, name)
        if said not in able:
            choices = " or ".join(f'"{one}"' for one in able)
            raise InputError(
                f'{KEY}.{name} = "{said}" is not simulated with training.offload of the optimizer; '
                f"{choices} would do"
            )
