"""V schedules in less memory: a repeating pattern whose steps run as early as memory allows.

In a V, rank r runs stage r on the way down and stage 2 · ranks - 1 - r on the way up. The patterns
are the building blocks of Qi et al. 2024 (arXiv:2405.15362). They say where each stage's F and I
stand in a period of six slots; the distances between them decide the memory. The paper settles the
rest on a grid of equal times. Here each rank, whenever it is free, takes the first step of the
pattern that can start.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

from schedules import Plan
from schedules.search.plan_draft import ALL_AT_WEIGHTS, Line, PlanDraft
from schedules.times import Given, exact

PERIOD = 6  # slots: F, I and W of two stages
Pattern = Sequence[Sequence[int]]  # per rank, the slots of: F down, F up, I up, I down
INFINITY = float("inf")

# Patience in units of W, wait in units of F (see _Runner), whether the order is found with hops: of
# 76 such triples, these four together come out best against the authors' orders.
TRIES = ((0.0, 0.0, 1), (0.75, 0.25, 1), (INFINITY, 1.0, 1), (0.5, 0.5, 0))


def v_min(ranks: int) -> Pattern:
    """Return the pattern with everything as close as can be: it takes a third of 1F1B's memory."""
    gap = 2 if ranks % 3 == 0 else 0
    return [
        (r, 2 * ranks - 1 - r, 2 * ranks + gap + r, 4 * ranks + gap - 1 - r) for r in range(ranks)
    ]


def v_half(ranks: int) -> Pattern:
    """Return the pattern that goes down at half the speed and up at full: half of 1F1B's memory."""
    gap = 3 if ranks % 2 == 0 else 0
    return [
        (2 * r, 3 * ranks - 2 - r, 3 * ranks + gap - 1 + 2 * r, 6 * ranks + gap - 2 - r)
        for r in range(ranks)
    ]


def run_pattern(pattern: Pattern, microbatches: int, limit: float, times: Given) -> list[Plan]:
    """Return the orders found for (F, I, W, p2p), at most ``limit`` activations, freed at W."""
    rank_of = [*range(len(pattern)), *reversed(range(len(pattern)))]
    seconds, plans = exact(times, len(rank_of)), []
    for patience, wait, hop in TRIES:
        assumed = seconds._replace(hops=[hop * time for time in seconds.hops])
        draft = PlanDraft(rank_of, microbatches, assumed, limit, ALL_AT_WEIGHTS)
        _Runner(draft, pattern, patience, wait).run()
        plans.append(draft.plan)
    return plans


class _Runner:
    """Ranks that decide in order of time what to run next.

    A wait of up to ``patience`` times W is left idle rather than filled with a W that delays the
    next step. A step whose input arrives within ``wait`` times F is not overtaken by later ones. A
    forward overtakes others only if they will still have room, when W run in the slots that the
    pattern has for them.
    """

    def __init__(self, draft: PlanDraft, pattern: Pattern, patience: float, wait: float) -> None:
        self.draft, times = draft, draft.times
        self.patience = [patience * seconds for seconds in times.weights]
        self.wait = [wait * seconds for seconds in times.forward]
        self.lines: list[list[Line]] = []
        for rank, slots in enumerate(pattern):
            f, b = draft.forward, draft.backward
            self.lines.append([f[rank], f[-1 - rank], b[-1 - rank], b[rank]])
            for line, slot in zip(self.lines[-1], slots, strict=True):
                line.due = slot
        self.events = [(0, 0)]  # (time, rank): when a rank may find something to run

    def run(self) -> None:
        draft, events = self.draft, self.events
        while events:
            time, rank = heapq.heappop(events)
            if time >= draft.clock[rank]:
                self._decide(time, rank)
        draft.put_all_weights()

    def _decide(self, time: int, rank: int) -> None:
        """Run the first step of the pattern that can start; without one, run W or nothing."""
        draft, soon = self.draft, INFINITY
        lines = self.lines[rank]
        lines.sort(key=attrgetter("due"))
        for n, line in enumerate(lines):
            arrival = line.arrival()
            if arrival is None or (line.kind == "F" and n and not self._fits(line, lines[:n])):
                continue
            if arrival <= time:
                if line.kind == "F" and draft.held[rank] + line.memory > draft.limit:
                    return self._weights(time, rank)
                return self._put(time, line)
            soon = min(soon, arrival)
            if arrival - time <= self.wait[line.stage]:
                break
        if draft.pending[rank] and (
            time + draft.next_weights(rank) <= soon
            or soon - time > self.patience[draft.pending[rank][0][0]]
        ):
            return self._weights(time, rank)
        if soon < INFINITY:
            heapq.heappush(self.events, (int(soon), rank))
        return None

    def _put(self, time: int, line: Line) -> None:
        draft = self.draft
        draft.wait(line.rank, time)
        draft.put(line)
        line.due += PERIOD if line.taken < draft.microbatches else 10**9
        heapq.heappush(self.events, (draft.clock[line.rank], line.rank))
        later = line.feeds
        if later and later.rank != line.rank:
            there = max(draft.clock[later.rank], later.inputs[-1])
            heapq.heappush(self.events, (there, later.rank))

    def _weights(self, time: int, rank: int) -> None:
        self.draft.wait(rank, time)
        self.draft.put_weights(rank)
        heapq.heappush(self.events, (self.draft.clock[rank], rank))

    def _fits(self, line: Line, before: list[Line]) -> bool:
        """Return whether memory holds this forward early and then all that comes before it."""
        draft = self.draft
        steps = sorted(
            (slot, other.kind == "F")
            for other in before
            for slot in islice(range(other.due, line.due, PERIOD), draft.microbatches - other.taken)
        )
        pending = len(draft.pending[line.rank])
        held, at = draft.held[line.rank] // 2 + 1, steps[0][0]
        for slot, forward in steps:
            freed = min(pending, slot - at)
            held, pending, at = held - freed, pending - freed, slot + 1
            held += forward
            pending += not forward
            if held > draft.limit // 2:
                return False
        return True
