"""A plan in the making: ranks take steps one by one, each as early as its input allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from schedules import Plan, Step

# What a step adds to its rank's memory, in halves of a stage activation
HALF_AT_INPUTS = {"F": 2, "I": -1, "W": -1}
ALL_AT_WEIGHTS = {"F": 2, "I": 0, "W": -2}


class Times(NamedTuple):
    """Durations in one unit; whole numbers, so that ties are ties."""

    forward: int
    inputs: int
    weights: int
    hop: int


class NoRoomError(ValueError):
    """The memory limit leaves no room for a step, and no W is left that would make some."""


class Line:
    """The steps of one kind of one stage, which run in the order of their microbatches.

    ``inputs`` are the times at which the inputs of its first steps are there, so far as known,
    ``taken`` the number of steps that its rank has taken.
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
        """When the input of the next step is there; None if that is not known yet."""
        return self.inputs[self.taken] if self.taken < len(self.inputs) else None


class Draft:
    """Ranks with clocks. ``rank_of[stage]`` runs it, holding at most ``limit`` stage activations.

    ``idle`` counts a rank's waits after its first step, and ``worst`` is the longest of them, so
    the longest own span is the work of a rank and ``worst``.
    """

    def __init__(
        self,
        rank_of: Sequence[int],
        microbatches: int,
        times: Times,
        limit: float,
        memory: Mapping[str, int] = HALF_AT_INPUTS,
    ) -> None:
        ranks = max(rank_of) + 1
        self.microbatches, self.times = microbatches, times
        self.limit, self.memory = 2 * limit, memory
        self.clock, self.held, self.idle = [0] * ranks, [0] * ranks, [0] * ranks
        self.worst = 0
        self.pending: list[deque[tuple[int, int]]] = [deque() for _ in range(ranks)]
        self.plan: Plan = [[] for _ in range(ranks)]
        self.forward, self.backward = (
            [Line(rank, stage, kind, seconds, memory[kind]) for stage, rank in enumerate(rank_of)]
            for kind, seconds in (("F", times.forward), ("I", times.inputs))
        )
        path = [*self.forward, *reversed(self.backward)]
        path[0].inputs = [0] * microbatches
        for line, later in pairwise(path):
            line.feeds, line.hop = later, times.hop * (line.rank != later.rank)

    def put(self, line: Line) -> None:
        """The line's next step, at the end of what its rank has."""
        rank, m = line.rank, line.taken
        if self.held[rank] + line.memory > self.limit:
            raise NoRoomError
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
        """Nothing before that time."""
        if until > self.clock[rank]:
            if self.plan[rank]:
                self.idle[rank] += until - self.clock[rank]
                self.worst = max(self.worst, self.idle[rank])
            self.clock[rank] = until

    def put_weights(self, rank: int) -> None:
        """The W that has been pending longest."""
        stage, m = self.pending[rank].popleft()
        self.clock[rank] += self.times.weights
        self.held[rank] += self.memory["W"]
        self.plan[rank].append(Step(stage, "W", m))

    def put_all_weights(self) -> None:
        """What is left, at the end."""
        for rank, pending in enumerate(self.pending):
            while pending:
                self.put_weights(rank)

    def room(self, line: Line) -> None:
        """Run as many W as the memory of the line's next step asks for."""
        while self.held[line.rank] + line.memory > self.limit:
            if not self.pending[line.rank]:
                raise NoRoomError
            self.put_weights(line.rank)

    def fill(self, line: Line, patience: float) -> None:
        """Run W while the line's next input is on its way.

        What of the wait no whole W fits into is waited for if it is at most ``patience``; if it is
        more, one more W runs and delays the step.
        """
        rank, arrival, pending = line.rank, line.inputs[line.taken], self.pending[line.rank]
        while pending and self.clock[rank] + self.times.weights <= arrival:
            self.put_weights(rank)
        if pending and arrival - self.clock[rank] > max(patience, 0):
            self.put_weights(rank)

    def spare(self, rank: int) -> int:
        """How much longer the rank may wait without being the worst."""
        return self.worst - self.idle[rank]
