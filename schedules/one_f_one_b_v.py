"""1F1B in a V: two stages per rank, two thirds of 1F1B's memory (Qi et al. 2024, arXiv:2405.15362).

Rank r runs stage r on the way down and stage 2 · ranks - 1 - r on the way up. Each rank repeats a
pattern of six slots: two forwards, of one slot each, and two whole backwards, of two. The order is
that of the pattern after each step has moved to the earliest slots that are free on its rank and
follow its input. A forward moves only as far as memory stays below that of the pattern.
"""

from __future__ import annotations

import contextlib
from itertools import accumulate

from schedules import Pair, Plan, Step

PERIOD = 6

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""

STAGES_PER_RANK = 2


def one_f_one_b_v(ranks: int, microbatches: int) -> Plan:
    """Make a plan with two stages per rank; it depends on no times.

    >>> " ".join(map(str, one_f_one_b_v(ranks=2, microbatches=2)[0]))
    '0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1'
    """
    first = _first_slots(ranks)
    source = dict(zip(first, [None, *first], strict=False))  # a microbatch's way, in order
    steps = sorted(
        (slot + PERIOD * m, Step(stage, kind, m))
        for (stage, kind), slot in first.items()
        for m in range(microbatches)
    )
    shares: list[list[tuple[int, Step]]] = [[] for _ in range(ranks)]
    for slot, step in steps:
        shares[min(step.stage, 2 * ranks - 1 - step.stage)].append((slot, step))
    grids = [_Grid(share) for share in shares]
    peak = max(grid.peak for grid in grids)
    ends: dict[tuple[int, str], list[int]] = {line: [] for line in first}
    for slot, step in steps:
        stage, kind, m = step
        own, before = ends[stage, kind], source[stage, kind]
        earliest = max(own[-1] if own else 0, ends[before][m] if before else 0)
        grid = grids[min(stage, 2 * ranks - 1 - stage)]
        own.append(grid.move(step, slot, earliest, peak))
    return [grid.order() for grid in grids]


class _Grid:
    """The slots of one rank: what takes each, and how many activations it adds."""

    def __init__(self, own: list[tuple[int, Step]]) -> None:
        change = [0] * (own[-1][0] + 3)
        for slot, step in own:
            change[slot + (step.kind == "B")] += 1 if step.kind == "F" else -1
        self.peak = max(accumulate(change))  # the most activations that the pattern holds
        self.taken: list[Step | None] = [None] * len(change)
        self.change = [0] * len(change)
        self.held = 0

    def move(self, step: Step, slot: int, earliest: int, peak: int) -> int:
        """Take the best slots up to ``slot``, which follows all taken; return the slot after."""
        start, length, held = earliest, 2, self.held
        if step.kind == "F":
            start, length = slot, 1
            while start > earliest and held < peak:
                start -= 1
                held -= self.change[start]
        start = self._free(start, slot, length)
        end = start + length
        self.taken[start:end] = [step] * length
        change = 1 if step.kind == "F" else -1
        self.change[end - 1] = change
        self.held += change
        return end

    def _free(self, start: int, slot: int, length: int) -> int:
        """Return the first place from ``start`` on with that many free slots, or else ``slot``."""
        taken, free = self.taken, [None] * length
        with contextlib.suppress(ValueError):  # none is left
            while start < slot:
                start = taken.index(None, start, slot)
                if taken[start : start + length] == free:
                    return start
                start += 1
        return slot

    def order(self) -> list[Step | Pair]:
        return list(dict.fromkeys(step for step in self.taken if step))


def _first_slots(ranks: int) -> dict[tuple[int, str], int]:
    """Return where the first microbatch stands: down and up, and back with pauses.

    After each third stage of the way back there is a pause.
    """
    slots = {(stage, "F"): stage for stage in range(2 * ranks)}
    slot = 2 * ranks + (3 if ranks % 3 == 0 else 0)
    for n, stage in enumerate(reversed(range(2 * ranks))):
        slots[stage, "B"] = slot
        slot += 2 + 3 * ((n - ranks - 1) % 3 == 0)
    return slots


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of the rank that idles most, for equal times.

    Returns None where no closed form is known.
    """
    if not F == I == W or microbatches < ranks or ranks % 3 == 0 or ranks == 2:
        return None
    return (5 * ranks - (5 if ranks % 3 == 1 else 7)) * F


def peak_activations(ranks: int, microbatches: int, chunks: int = 2) -> list[float]:
    """Return the most stage activations that each rank holds.

    >>> peak_activations(4, 8)
    [6.0, 6.0, 6.0, 6.0]
    """
    return [2.0 * min((2 * ranks + 3) // 3, microbatches)] * ranks
