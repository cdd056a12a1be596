"""How a residual network may be trained: on replicas only. Each check says in one sentence why."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe

ALONE = "is not simulated with model.blocks, which run data parallel only"


def check(recipe: Recipe) -> None:
    """Raise InputError for what splits a residual network."""
    if not recipe.model.blocks:
        return
    p = recipe.parallelism
    for name in ("tp", "pp", "cp", "ep", "etp"):
        if getattr(p, name) > 1:
            raise InputError(f"parallelism.{name} = {getattr(p, name)} {ALONE}; it must be 1")
    if recipe.stages > 1:
        name = f"{recipe.schedule.name} with {recipe.stages} stages"
        raise InputError(f"the schedule {name} {ALONE}; one_f_one_b would do")
