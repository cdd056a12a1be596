"""Whether replicas can split the optimizer's state as a recipe says, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for what ZeRO-1 cannot do."""
    p = recipe.parallelism
    if p.overlap_param_gather and p.zero not in (1, 2):
        raise InputError(
            "parallelism.overlap_param_gather = true needs zero = 1 or 2, whose gathers it overlaps"
        )
    if p.optimizer_instances > 1:
        _instances(recipe)


def _instances(recipe: Recipe) -> None:
    """Check groups of replicas that each have a whole optimizer state."""
    p = recipe.parallelism
    n, replicas = p.optimizer_instances, (p.dp or 1) * p.cp
    what = f"parallelism.optimizer_instances = {n}"
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
