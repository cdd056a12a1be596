"""The decisions of a recipe that determine a rank's memory peak, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.builder.job import Job
from sim.memory.causes import Decisions
from sim.recipe.recipe import Recipe


def decided(recipe: Recipe, job: Job, ranks: Iterable[int]) -> Iterator[Decisions]:
    """Yield the decisions that concern each of these ranks of the job."""
    schedule, microbatches = recipe.schedule.csv or recipe.schedule.name, recipe.planned
    gathering = job.data.sharding.words if job.data.sharding else ""
    for rank in ranks:
        at = job.mesh.coordinates(rank)["pp"]
        yield Decisions(schedule, job.mesh.pp, at, microbatches, gathering)
