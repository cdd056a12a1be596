"""V-Half: two stages per rank in a V, in half of 1F1B's memory (Qi et al. 2024, arXiv:2405.15362).

The order is found for given times. Rank r runs stage r on the way down and stage 2 · ranks - 1 - r
on the way up.
"""

from schedules import Plan
from schedules.search.choice import Objective
from schedules.search.orders import Asked, of_pattern
from schedules.search.v_pattern import v_half as pattern
from schedules.times import Given, Seconds

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""

STAGES_PER_RANK = 2


def v_half(
    ranks: int,
    microbatches: int,
    F: Seconds = 1.0,
    I: Seconds = 1.0,
    W: Seconds = 1.0,
    p2p: Seconds = 0.0,
    objective: Objective = "span",
    policy: str = "direction",
) -> Plan:
    """Make a plan for times in seconds, one for all stages (boundaries for p2p) or one for each.

    It is the shortest by ``objective``, the longest ``span`` of a rank or the ``makespan``, of
    those found for messages that are sent by ``policy``.
    :func:`peak_activations` says how much memory it takes.

    >>> " ".join(map(str, v_half(ranks=2, microbatches=2)[0]))
    '0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1'
    """
    return orders(ranks, microbatches, (F, I, W, p2p), objective, policy)[0]


def orders(
    ranks: int, microbatches: int, times: Given, objective: Objective, policy: str
) -> list[Plan]:
    """Return the orders among which the schedule chooses, the shortest first."""
    asked = Asked(ranks, microbatches, _limit(ranks), times, objective, policy)
    return of_pattern(asked, pattern(ranks))


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of a rank for equal times without hops.

    Returns None where no closed form is known.
    """
    if not F == I == W or ranks < 3 or microbatches < ranks:
        return None
    return (3 * ranks - (4 if ranks % 2 else 7)) * F


def peak_activations(ranks: int, microbatches: int, chunks: int = 2) -> list[float]:
    """Return the most stage activations that each rank holds, even if W frees all.

    >>> peak_activations(4, 8)[0]
    6.0
    """
    return [float(min(_limit(ranks), 2 * microbatches))] * ranks


def _limit(ranks: int) -> int:
    return 2 * ((ranks + 2) // 2)
