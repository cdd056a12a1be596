"""The decisions of a recipe that determine a rank's memory peak, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.builder.job import Job
from sim.memory.causes import Decisions
from sim.recipe.recipe import Recipe


def decided(recipe: Recipe, job: Job, ranks: Iterable[int]) -> Iterator[Decisions]:
    """Yield the decisions that concern each of these ranks of the job."""
    schedule, microbatches = recipe.schedule.csv or recipe.schedule.name, recipe.planned
    gathering = _gathering(recipe)
    for rank in ranks:
        at = job.mesh.coordinates(rank)["pp"]
        yield Decisions(schedule, job.mesh.pp, at, microbatches, gathering)


def _gathering(recipe: Recipe) -> str:
    """Return how sharded parameters are gathered ahead, in words; empty if they are not."""
    parallelism = recipe.parallelism
    if parallelism.zero == 3:
        return "ZeRO-3's prefetch"
    fsdp = parallelism.fsdp
    if fsdp is None:
        return ""
    if fsdp.kind == "yafsdp":
        return "YaFSDP's two buffers"
    if fsdp.kind == "fsdp1":
        return "FSDP1's prefetch (forward_prefetch, backward_prefetch)"
    if fsdp.reshard_after_forward is False:
        return "reshard_after_forward = false"
    depth = "2 in the forward, 1 in the backward" if fsdp.prefetch is None else fsdp.prefetch
    return f"prefetch depth {depth}"
