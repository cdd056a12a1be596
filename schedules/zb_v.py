"""ZB-V: zero bubble in 1F1B's memory, with two stages per rank in a V (Qi et al. 2024).

arXiv:2405.15362: rank r runs stage r on the way down and stage 2 · ranks - 1 - r on the way up. For
equal times of F, I and W there is an order made by hand, which torch runs; for other times a search
finds one.
"""

from schedules import Plan
from schedules.input_error import InputError
from schedules.patterns.torch_zb_v import torch_zb_v
from schedules.search.choice import Objective
from schedules.search.orders import Asked, in_a_v, of_pattern
from schedules.search.v_pattern import v_half, v_min
from schedules.times import Given, Seconds
from schedules.v_half import peak_activations as half
from schedules.v_min import peak_activations as least

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""

STAGES_PER_RANK = 2


def zb_v(
    ranks: int,
    microbatches: int,
    F: Seconds | None = None,
    I: Seconds | None = None,
    W: Seconds | None = None,
    p2p: Seconds = 0.0,
    memory: float | None = None,
    objective: Objective = "span",
    policy: str = "direction",
) -> Plan:
    """Make a plan for times in seconds, one for all stages (boundaries for p2p) or one for each.

    Without times, the order is that of torch's ``ScheduleZBVZeroBubble``. With times it is the one
    found for them, unless torch's is no longer by ``objective``, the longest ``span`` of a rank or
    the ``makespan``, with messages sent by ``policy``. A rank holds at most ``memory`` stage
    activations: two per rank unless given, as torch's order needs, where I frees half of an
    activation. In less memory, the pattern is that of V-Half or V-Min.

    >>> " ".join(map(str, zb_v(ranks=2, microbatches=2)[1]))
    '1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1'

    Raises InputError when not even V-Min's pattern fits into that memory.
    """
    if (F, I, W) == (None, None, None) and (memory is None or memory >= 2 * ranks):
        return torch_zb_v(ranks, microbatches)
    f, i, w = (1.0 if time is None else time for time in (F, I, W))
    return orders(ranks, microbatches, (f, i, w, p2p), objective, policy, memory)[0]


def orders(
    ranks: int,
    microbatches: int,
    times: Given,
    objective: Objective,
    policy: str,
    memory: float | None = None,
) -> list[Plan]:
    """Return the orders among which the schedule chooses, the shortest first."""
    limit = 2 * ranks if memory is None else memory
    asked = Asked(ranks, microbatches, limit, times, objective, policy)
    if limit >= 2 * ranks:
        return in_a_v(asked)
    for pattern, needs in ((v_half, half), (v_min, least)):
        if needs(ranks, ranks)[0] <= limit:
            return of_pattern(asked, pattern(ranks))
    raise InputError(
        f"memory = {limit} stage activations is too little for {ranks} ranks; "
        f"V-Min, the least, takes {least(ranks, ranks)[0]:.0f}"
    )


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of the makespan for equal times without hops.

    They are the lead-in: no rank idles between its first step and its last. Returns None where no
    closed form is known.
    """
    return (ranks - 1) * F if F == I == W and microbatches >= 2 * ranks - 1 else None


def peak_activations(ranks: int, microbatches: int, chunks: int = 2) -> list[float]:
    """Return the most stage activations that each rank holds by default.

    >>> peak_activations(4, 8)
    [8.0, 8.0, 8.0, 8.0]
    """
    return [2.0 * min(ranks, microbatches)] * ranks
