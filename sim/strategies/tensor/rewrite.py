"""Tensor parallelism: a layer's matrices, and with sp the sequence between them, are split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from sim.builder.edge import Edge
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.model.operators import Share
from sim.strategies.tensor import matrices, sequence
from sim.strategies.tensor.declare import sp


def share(part: Share, job: Job, cp_rank: int, ep_rank: int) -> Share:
    """Return the share of one rank. Raises InputError where a size cannot be divided evenly."""
    p = job.parallelism
    own = matrices.split(part, p.tp)
    return sequence.split(own, p.tp) if sp(p) else own


def edges(job: Job) -> Mapping[str, Edge]:
    """Return the collectives around matrices; a degree of 1 has none."""
    if job.parallelism.tp == 1:
        return {}
    return sequence.EDGES if sp(job.parallelism) else matrices.EDGES


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...] | None:
    """Return the ranks of tp that hold the same KV heads."""
    if axis != "kv":
        return None
    same = matrices.kv_copies(job)
    begin = lane.tp - lane.tp % same
    return tuple(job.ranks[begin : begin + same, lane.cp, lane.dp, q].tolist())


def cuts(job: Job, stride: Mapping[str, int]) -> Sequence[int]:
    """Return where the groups with the same KV heads end."""
    return [stride["tp"] * matrices.kv_copies(job)]


def boundary(job: Job, size: float) -> float:
    """Return the bytes of a message: with sp each rank sends only its part of the sequence."""
    return size / job.parallelism.tp if sp(job.parallelism) else size


def in_part(job: Job, stages: Sequence[int]) -> Sequence[tuple[str, str, float]]:
    """Return the gradients of which ranks have seen only their tokens, or their query heads."""
    tokens = fsum(sequence.replicated_gradient_bytes(job, stage) for stage in stages)
    heads = matrices.replicated_kv_bytes(job, stages)
    return [("partial", "tp", tokens), ("kv", "kv", heads)]
