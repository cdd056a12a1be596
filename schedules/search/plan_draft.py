"""A plan in the making: ranks take steps one by one, each as early as its input allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from schedules import Plan, Step
from schedules.times import Times

# What a step adds to its rank's memory, in halves of a stage activation
HALF_AT_INPUTS = {"F": 2, "I": -1, "W": -1}
ALL_AT_WEIGHTS = {"F": 2, "I": 0, "W": -2}


class StuckError(ValueError):
    """A step cannot come next: it has no input, or memory has no room and no W can make some."""


class Line:
    """The steps of one kind of one stage, which run in the order of their microbatches.

    ``inputs`` are the times at which the inputs of its first steps arrive, as far as they are
    known; ``taken`` is the number of steps that its rank has taken.
    """

    __slots__ = (
        "due",
        "feeds",
        "hop",
        "inputs",
        "kind",
        "memory",
        "rank",
        "seconds",
        "stage",
        "taken",
    )

    def __init__(self, rank: int, stage: int, kind: str, seconds: int, memory: int) -> None:
        self.rank, self.stage, self.kind = rank, stage, kind
        self.seconds, self.memory = seconds, memory
        self.inputs: list[int] = []
        self.taken = 0
        self.feeds: Line | None = None
        self.hop = 0
        self.due = 0

    def arrival(self) -> int | None:
        """Return when the input of the next step arrives; None if that is not known yet."""
        return self.inputs[self.taken] if self.taken < len(self.inputs) else None


class PlanDraft:
    """Ranks with clocks. ``rank_of[stage]`` runs it, holding at most ``limit`` stage activations.

    ``idle`` counts the time that each rank waits after its first step, from ``counted`` on, and
    ``worst`` is the largest of these counts. If all ranks have as much to do, or if ``counted`` is
    what each has to do more than the least busy rank, the longest span from a rank's first step to
    its last is the work of a rank plus ``worst``.
    """

    def __init__(
        self,
        rank_of: Sequence[int],
        microbatches: int,
        times: Times,
        limit: float,
        memory: Mapping[str, int] = HALF_AT_INPUTS,
        counted: Sequence[int] = (),
    ) -> None:
        ranks = max(rank_of) + 1
        self.microbatches, self.times = microbatches, times
        self.limit, self.memory = 2 * limit, memory
        self.clock, self.held, self.idle = [0] * ranks, [0] * ranks, [0] * ranks
        self.idle[: len(counted)] = counted
        self.worst = max(self.idle)
        self.begin = [0] * ranks  # when each rank starts its first step
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        self.plan: Plan = [[] for _ in range(ranks)]
        self.forward, self.backward = (
            [
                Line(rank, stage, kind, seconds[stage], memory[kind])
                for stage, rank in enumerate(rank_of)
            ]
            for kind, seconds in (("F", times.forward), ("I", times.inputs))
        )
        path = [*self.forward, *reversed(self.backward)]
        path[0].inputs = [0] * microbatches
        for line, later in pairwise(path):
            if line.rank != later.rank:
                line.hop = times.hops[min(line.stage, later.stage)]
            line.feeds = later

    def put(self, line: Line) -> None:
        """Run the line's next step after all that its rank has taken."""
        rank, m = line.rank, line.taken
        if self.held[rank] + line.memory > self.limit or m >= len(line.inputs):
            raise StuckError
        self.wait(rank, line.inputs[m])
        end = self.clock[rank] + line.seconds
        self.clock[rank] = end
        self.held[rank] += line.memory
        self.plan[rank].append(Step(line.stage, line.kind, m))
        line.taken = m + 1
        if line.feeds:
            line.feeds.inputs.append(end + line.hop)
        if line.kind == "I":
            self.pending[rank].append((line.stage, m))

    def wait(self, rank: int, until: int) -> None:
        """Let the rank do nothing before that time."""
        if until > self.clock[rank]:
            if self.plan[rank]:
                self.idle[rank] += until - self.clock[rank]
                self.worst = max(self.worst, self.idle[rank])
            else:
                self.begin[rank] = until
            self.clock[rank] = until

    def span(self) -> int:
        """Return the longest time of a rank from the start of its first step until now."""
        return max(now - begin for now, begin in zip(self.clock, self.begin, strict=True))

    def length(self, objective: str) -> int:
        """Return the longest span, or the time until now for the objective ``makespan``."""
        return max(self.clock) if objective == "makespan" else self.span()

    def next_weights(self, rank: int) -> int:
        """Return how long the W takes that has been pending longest."""
        return self.times.weights[self.pending[rank][0][0]]

    def put_weights(self, rank: int) -> None:
        """Run the W that has been pending longest."""
        stage, m = self.pending[rank].popleft()
        self.clock[rank] += self.times.weights[stage]
        self.held[rank] += self.memory["W"]
        self.plan[rank].append(Step(stage, "W", m))

    def put_all_weights(self) -> None:
        """Run every W that is left, at the end."""
        for rank, pending in enumerate(self.pending):
            while pending:
                self.put_weights(rank)

    def can_take(self, line: Line) -> bool:
        """Return whether the line's next input is on its way and it has room if all W run first."""
        freed = -self.memory["W"] * len(self.pending[line.rank])
        fits = self.held[line.rank] + line.memory - freed <= self.limit
        return fits and line.arrival() is not None

    def left(self) -> int:
        """Return how many forwards and backwards no rank has taken yet."""
        lines = (*self.forward, *self.backward)
        return sum(self.microbatches - line.taken for line in lines)

    def room(self, line: Line) -> None:
        """Run as many W as the memory of the line's next step asks for."""
        while self.held[line.rank] + line.memory > self.limit:
            if not self.pending[line.rank]:
                raise StuckError
            self.put_weights(line.rank)

    def fill(self, line: Line, patience: float) -> None:
        """Run W while the line's next input is on its way.

        Where a wait is left into which no whole W fits, the rank waits if it is at most
        ``patience``. Otherwise one more W runs and delays the step.
        """
        rank, arrival, pending = line.rank, line.inputs[line.taken], self.pending[line.rank]
        while pending and self.clock[rank] + self.next_weights(rank) <= arrival:
            self.put_weights(rank)
        if pending and arrival - self.clock[rank] > max(patience, 0):
            self.put_weights(rank)

    def spare(self, rank: int) -> int:
        """Return how much longer the rank may wait without being the worst."""
        return self.worst - self.idle[rank]


def counts(rank_of: Sequence[int], microbatches: int, times: Times) -> list[list[int]]:
    """List the waits to count from: none, as the authors do, or each rank's extra work.

    Counting from extra work lets ranks with less to do wait; it is left out where all have as much.

    >>> counts([0, 1], 2, Times([5, 6], [4, 4], [3, 3], [0]))
    [[0, 0], [0, 2]]
    """
    work = [0] * (max(rank_of) + 1)
    for rank, seconds in zip(rank_of, zip(*times[:3], strict=True), strict=True):
        work[rank] += microbatches * sum(seconds)
    extra = [own - min(work) for own in work]
    return [[0] * len(work), extra] if any(extra) else [extra]
