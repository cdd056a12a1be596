"""The order of torch's ZBVZeroBubble: ZB-V made by hand for equal times of F, I and W."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from schedules import Plan, Step


def torch_zb_v(ranks: int, microbatches: int) -> Plan:
    """Make the order of torch 2.13's ``ScheduleZBVZeroBubble``: two stages per rank in a V.

    The pattern needs 2 · ranks - 1 microbatches; with fewer, torch makes it for that many and
    leaves out the steps of the microbatches that are not there.

    >>> " ".join(map(str, torch_zb_v(2, 2)[1]))
    '1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1'
    """
    full = max(2 * ranks - 1, microbatches)
    return [
        [step for step in _order(rank, ranks, full) if step.microbatch < microbatches]
        for rank in range(ranks)
    ]


def _order(rank: int, ranks: int, microbatches: int) -> Iterator[Step]:
    down, up = rank, 2 * ranks - 1 - rank
    numbers = {(stage, kind): count() for stage in (down, up) for kind in "FIW"}

    def take(stage: int, kinds: str) -> Iterator[Step]:
        for kind in kinds:
            yield Step(stage, kind, next(numbers[stage, kind]))

    lead = 2 * (ranks - rank) - 1
    for _ in range(lead):
        yield from take(down, "F")
    for _ in range(rank):
        yield from take(up, "F")
        yield from take(down, "F")
    for _ in range(ranks - rank):
        yield from take(up, "FIW")
    for n in range(microbatches - ranks):
        if lead + rank + n < microbatches:
            yield from take(down, "F")
        yield from take(down, "IW")
        yield from take(up, "FIW")
    for _ in range(rank):
        yield from take(down, "I")
        yield from take(up, "I")
    for _ in range(ranks - rank):
        yield from take(down, "IW")
    for _ in range(rank):
        yield from take(up, "W")
    for _ in range(rank):
        yield from take(down, "W")
