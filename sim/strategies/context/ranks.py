"""Which ranks of a context-parallel group attend together, and how."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.model.operators import Context
from sim.recipe.recipe import ParallelismSection
from sim.strategies.context.declare import keys


def context(p: ParallelismSection, cp_rank: int = 0) -> Context:
    """Return how a rank takes part in attention.

    Raises ValueError for an unknown rank, and InputError where the degree of Ulysses does
    not divide cp.
    """
    n, own = p.cp, keys(p)
    if not 0 <= cp_rank < n:
        raise ValueError(f"cp rank {cp_rank} is not among the {n} of its group")
    u = {"ulysses": n, "usp": own.ulysses}.get(own.cp_kind, 1)
    if n % u:
        raise InputError(f"cp = {n} cannot be split evenly by ulysses = {u}")
    placed = own.cp_placement if n > u else "contiguous"
    gather = own.cp_kind == "allgather" and n > 1
    return Context(u, n // u, cp_rank // u, gather, placed, axes(p))


def axes(p: ParallelismSection) -> tuple[str, str]:
    """Return the axes of the exchange of heads and of the ring."""
    return ("cp_ulysses", "cp_ring") if keys(p).cp_kind == "usp" else ("cp", "cp")


def members(p: ParallelismSection, axis: str, cp_rank: int) -> tuple[int, ...]:
    """Return the cp coordinates of a rank's group on one of usp's axes, in the order of its ring.

    >>> usp = ParallelismSection(cp=4, cp_kind="usp", ulysses=2)
    >>> members(usp, "cp_ulysses", 2), members(usp, "cp_ring", 2)
    ((2, 3), (0, 2))
    """
    begin, u = twin(p, cp_rank), context(p, cp_rank).ulysses
    return tuple(range(begin, begin + u) if axis == "cp_ulysses" else range(cp_rank % u, p.cp, u))


def twin(p: ParallelismSection, cp_rank: int) -> int:
    """Return the first cp rank with the same programs; ranks of one run of Ulysses have the same.

    With zigzag all ranks have the same FLOPs, but kernels of different shapes.

    >>> usp = ParallelismSection(cp=4, cp_kind="usp", ulysses=2)
    >>> [twin(usp, rank) for rank in range(4)]
    [0, 0, 2, 2]
    """
    u = context(p, cp_rank).ulysses
    return cp_rank - cp_rank % u
