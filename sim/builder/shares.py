"""What one rank computes of a layer, and the collectives around what is split.

Every strategy has its turn here, from the inside out.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim import strategies
from sim.builder.edge import Edge
from sim.builder.job import Job
from sim.model.operators import Share, whole


def share(job: Job, *, cp_rank: int = 0, ep_rank: int = 0) -> Share:
    """Return what one rank computes of a layer, the embedding and the head.

    ``cp_rank`` is the rank's coordinate in the context-parallel group, which matters to attention
    only. ``ep_rank`` is that along ep: with an uneven load each rank has other numbers of tokens.
    Raises InputError where a size cannot be divided evenly.
    """
    p, training = job.parallelism, job.training
    part = whole(
        job.model, training.micro_batch, training.dtype, training.grad_dtype,
        matmul=training.matmul or "", tp=p.tp, dp=p.dp or 1,
    )  # fmt: skip
    for change in strategies.hooks("share"):
        part = change(part, job, cp_rank, ep_rank)
    return part


def edges(job: Job) -> Mapping[str, Edge]:
    """Return the collectives by kind of edge; a degree of 1 has none."""
    around: dict[str, Edge] = {}
    for found in strategies.hooks("edges"):
        around |= found(job)
    return around
