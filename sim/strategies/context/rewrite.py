"""Context parallelism: the ranks of a group share each sequence, and attend together.

Everything except attention sees only a rank's own tokens. Attention is shared as ``cp_kind`` says:
``ulysses`` (heads for sequence, by all-to-alls), ``ring`` (keys and values go round), ``allgather``
(keys and values gathered), or ``usp`` (arXiv:2405.07719), Ulysses inside runs of ``ulysses`` ranks
and a ring across them. The collectives are those of the axis ``cp``; ``usp`` has two axes.
Parameters are whole on every rank, so their gradients are reduced over cp and dp together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schedules.input_error import InputError
from sim.builder.edge import Edge
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.model.operators import Share
from sim.strategies.context import ranks
from sim.strategies.context.declare import keys


def share(part: Share, job: Job, cp_rank: int, ep_rank: int) -> Share:
    """Return the share of one rank; ``part`` has already been split over tp.

    Raises InputError where the sequence or the heads cannot be divided evenly.
    """
    n = job.parallelism.cp
    if n == 1:
        return part
    how = ranks.context(job.parallelism, cp_rank)
    runs = n * (2 if how.placement == "zigzag" else 1)
    few, many = sorted((part.kv_heads, how.ulysses))
    for what, size, by in (
        ("sequence", part.sequence, runs),
        ("heads per rank", part.heads, how.ulysses),
        ("the larger of kv_heads per rank and the degree of Ulysses", many, few),
    ):
        if size % by:
            raise InputError(f"{what} = {size} cannot be split evenly by {by}; choose another cp")
    return replace(part, sequence=part.sequence // n, tokens=part.tokens // n, context=how)


def edges(job: Job) -> Mapping[str, Edge]:
    """Return the collectives around attention: exchanges of heads, and gathers of keys."""
    if job.parallelism.cp == 1:
        return {}
    inside, across = ranks.axes(job.parallelism)
    return {
        "heads": Edge(after="all_to_all", after_backward="all_to_all", axis=inside),
        "keys": Edge(after="all_gather", after_backward="reduce_scatter", axis=across),
    }


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...] | None:
    """Return the ranks that exchange heads, or those of a ring across such."""
    if axis not in ("cp_ulysses", "cp_ring"):
        return None
    mine = list(ranks.members(job.parallelism, axis, lane.cp))
    return tuple(job.ranks[lane.tp, mine, lane.dp, q].tolist())


def twin(job: Job, axis: str, at: int) -> int:
    """Return the first cp rank with the same programs."""
    return ranks.twin(job.parallelism, at) if axis == "cp" else 0


def cuts(job: Job, stride: Mapping[str, int]) -> Sequence[int]:
    """Return where the groups that exchange heads end inside a ring."""
    own = keys(job.parallelism)
    return [stride["cp"] * own.ulysses] if own.cp_kind == "usp" else []
