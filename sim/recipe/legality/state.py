"""Whether an optimizer may keep and split its state as a recipe says, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe

KEY = "training.optimizer_state"


def check(recipe: Recipe) -> None:
    """Raise InputError for a state that does not go with the weights or with the other keys."""
    _split(recipe)
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


def _split(recipe: Recipe) -> None:
    """Check how replicas split the state: all of it, or that of each of several groups."""
    p = recipe.parallelism
    if p.overlap_param_gather and p.zero not in (1, 2):
        raise InputError(
            "parallelism.overlap_param_gather = true needs zero = 1 or 2, whose gathers it overlaps"
        )
    n, replicas = p.optimizer_instances, (p.dp or 1) * p.cp
    what = f"parallelism.optimizer_instances = {n}"
    if n == 1:
        return
    if p.zero != 1:
        raise InputError(f"{what} needs zero = 1: each instance splits the optimizer state")
    if replicas % n or replicas == n:
        raise InputError(
            f"{what} must divide dp x cp = {replicas} into runs of two or more, which split the "
            "state; for runs of one rank zero = 0 would do"
        )
    if not recipe.model.experts or p.tp * p.ep * p.etp == 1:
        return
    holders = replicas * p.tp // (p.ep * p.etp)
    if holders % n:
        raise InputError(f"{what} must divide the {holders} ranks that hold the same experts")
    if not p.order.endswith("dp-pp"):
        raise InputError(f'{what} with experts needs parallelism.order to end with "dp-pp"')
