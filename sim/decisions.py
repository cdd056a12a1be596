"""What of a recipe decides which memory a rank holds at its peak, in words."""

from __future__ import annotations

import numpy as np

from sim.analysis.memory_causes import Decisions
from sim.job import Job
from sim.recipe import Recipe


def decided(recipe: Recipe, job: Job, rank: int) -> Decisions:
    """The decisions that concern one rank of the job."""
    name = recipe.schedule.name
    return Decisions(
        schedule=str(recipe.schedule.csv or name),
        ranks=job.ranks.shape[3],
        rank=int(np.argwhere(job.ranks == rank)[0, 3]),
        microbatches=recipe.planned,
        gathering=_gathering(recipe),
    )


def _gathering(recipe: Recipe) -> str:
    """How parameters are gathered ahead, where they are split."""
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
