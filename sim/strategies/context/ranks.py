"""Context parallelism: the ranks of a group share each sequence, and attend together.

Everything except attention sees only a rank's own tokens. Attention is shared as ``cp_kind`` says:
``ulysses`` (heads for sequence, by all-to-alls), ``ring`` (keys and values go round), ``allgather``
(keys and values gathered), or ``usp`` (arXiv:2405.07719), Ulysses inside runs of ``ulysses`` ranks
and a ring across them. The collectives are those of the axis ``cp``; ``usp`` has two axes, whose
groups :func:`members` gives. Parameters are whole on every rank, so their gradients are reduced
over cp and dp together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from schedules.input_error import InputError
from sim.builder.edge import Edge
from sim.model.operators import Context, Share
from sim.recipe.recipe import ParallelismSection

AXES = {"usp": ("cp_ulysses", "cp_ring")}
"""The axes of the exchange of heads and of the ring, where they are not both ``cp``."""


def context(p: ParallelismSection, cp_rank: int = 0) -> Context:
    """Return how a rank takes part in attention.

    Raises ValueError for an unknown rank, and InputError where the degree of Ulysses does
    not divide cp.
    """
    n, kind = p.cp, p.cp_kind
    if not 0 <= cp_rank < n:
        raise ValueError(f"cp rank {cp_rank} is not among the {n} of its group")
    u = {"ulysses": n, "usp": p.ulysses}.get(kind, 1)
    if n % u:
        raise InputError(f"cp = {n} cannot be split evenly by ulysses = {u}")
    placed = p.cp_placement if n > u else "contiguous"
    axes = AXES.get(kind, ("cp", "cp"))
    return Context(u, n // u, cp_rank // u, kind == "allgather" and n > 1, placed, axes)


def split(share: Share, p: ParallelismSection, cp_rank: int) -> Share:
    """Return the share of one rank; ``share`` has already been split over tp.

    Raises InputError where the sequence or the heads cannot be divided evenly.
    """
    if p.cp == 1:
        return share
    how, n = context(p, cp_rank), p.cp
    runs = n * (2 if how.placement == "zigzag" else 1)
    few, many = sorted((share.kv_heads, how.ulysses))
    for what, size, by in (
        ("sequence", share.sequence, runs),
        ("heads per rank", share.heads, how.ulysses),
        ("the larger of kv_heads per rank and the degree of Ulysses", many, few),
    ):
        if size % by:
            raise InputError(f"{what} = {size} cannot be split evenly by {by}; choose another cp")
    return replace(share, sequence=share.sequence // n, tokens=share.tokens // n, context=how)


def edges(p: ParallelismSection) -> Mapping[str, Edge]:
    """Return the collectives around attention: exchanges of heads, and gathers of keys."""
    if p.cp == 1:
        return {}
    inside, across = AXES.get(p.cp_kind, ("cp", "cp"))
    return {
        "heads": Edge(after="all_to_all", after_backward="all_to_all", axis=inside),
        "keys": Edge(after="all_gather", after_backward="reduce_scatter", axis=across),
    }


def members(p: ParallelismSection, axis: str, cp_rank: int) -> tuple[int, ...]:
    """Return the cp coordinates of a rank's group on one of the axes, in the order of its ring.

    Raises ValueError for an unknown axis.

    >>> usp = ParallelismSection(cp=4, cp_kind="usp", ulysses=2)
    >>> members(usp, "cp_ulysses", 2), members(usp, "cp_ring", 2), members(usp, "cp", 2)
    ((2, 3), (0, 2), (0, 1, 2, 3))
    """
    u, n = context(p, cp_rank).ulysses, p.cp
    match axis:
        case "cp":
            return tuple(range(n))
        case "cp_ulysses":
            begin = cp_rank - cp_rank % u
            return tuple(range(begin, begin + u))
        case "cp_ring":
            return tuple(range(cp_rank % u, n, u))
    raise ValueError(f"no axis {axis!r} of context parallelism; there are cp, cp_ulysses, cp_ring")


def twin(p: ParallelismSection, cp_rank: int) -> int:
    """Return the first cp rank with the same programs; ranks of one run of Ulysses have the same.

    >>> usp = ParallelismSection(cp=4, cp_kind="usp", ulysses=2)
    >>> [twin(usp, rank) for rank in range(4)]
    [0, 0, 2, 2]
    """
    u = context(p, cp_rank).ulysses
    return cp_rank - cp_rank % u


def alike(p: ParallelismSection) -> bool:
    """Return whether all cp ranks have the very same programs, as only under Ulysses.

    With zigzag all have the same FLOPs, but kernels of different shapes.
    """
    return twin(p, p.cp - 1) == 0
