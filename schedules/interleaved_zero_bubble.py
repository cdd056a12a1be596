"""Interleaved 1F1B with each backward split in two, as torch runs it.

The order is that of ``torch.distributed.pipelining.ScheduleInterleavedZeroBubble`` (torch 2.13),
after Qi et al. 2023 (arXiv:2401.10241). Rank r holds stages r, r + ranks, r + 2 * ranks, ..., and
runs the W of a microbatch r steps after its I.
"""

from collections.abc import Iterator

from schedules import Plan, Step
from schedules.input_error import InputError

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As torch's runtime sends; see :mod:`schedules.from_csv`."""


def interleaved_zero_bubble(ranks: int, microbatches: int, chunks: int = 2) -> Plan:
    """Make a plan with ``chunks`` stages per rank.

    >>> " ".join(map(str, interleaved_zero_bubble(2, 2)[1]))
    '1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1'
    """
    group = microbatches // _rounds(ranks, microbatches)
    table = [
        (chunk, m)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(first, first + group)
    ]
    return [list(_order(rank, ranks, chunks, group, table)) for rank in range(ranks)]


def check(ranks: int, microbatches: int, chunks: int | None = None) -> None:
    """Raise InputError for microbatch counts that torch refuses."""
    _rounds(ranks, microbatches)


def _rounds(ranks: int, microbatches: int) -> int:
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise InputError(
            f"{microbatches} microbatches do not make {rounds} equal rounds of at least {ranks}, "
            f"one per rank; {rounds * ranks} or {(rounds + 1) * ranks} would"
        )
    return rounds


def _order(
    rank: int, ranks: int, chunks: int, group: int, table: list[tuple[int, int]]
) -> Iterator[Step]:
    forward = [Step(rank + chunk * ranks, "F", m) for chunk, m in table]
    stages = [(rank + (chunks - 1 - chunk) * ranks, m) for chunk, m in table]
    lead = min((chunks - 1) * group + ranks - 1 - rank, len(table))  # half of interleaved 1F1B's
    yield from forward[:lead]
    for n, (stage, m) in enumerate(stages):
        yield from forward[lead + n : lead + n + 1]
        yield Step(stage, "I", m)
        if n >= rank:
            yield Step(stages[n - rank][0], "W", stages[n - rank][1])
    for stage, m in stages[max(len(stages) - rank, 0) :]:
        yield Step(stage, "W", m)


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of a rank without hops; None with fewer microbatches than ranks."""
    return (ranks - 1) * max(F + I - W, F, I) if microbatches >= ranks else None


def peak_activations(ranks: int, microbatches: int, chunks: int = 2) -> list[float]:
    """Return the most stage activations that each rank holds.

    I frees one half of an activation and W the other.

    >>> peak_activations(4, 8)
    [8.0, 7.5, 7.0, 6.5]
    """
    steps, group = chunks * microbatches, microbatches // _rounds(ranks, microbatches)
    leads = [min((chunks - 1) * group + ranks - 1 - rank, steps) for rank in range(ranks)]
    return [
        min(float(steps), lead + 1 + min(rank, max(steps - 1 - lead, 0)) / 2)
        for rank, lead in enumerate(leads)
    ]
