"""The search: layouts are simulated, the most promising first, until no other can be better.

Groups of layouts wait with the layouts for their turn, each with a lower bound; a group whose turn
comes is taken apart into its members. First come those with the least bound, times how far costs
were above bounds among layouts of their kind so far. That decides the order alone: what is left out
is left out by its bound. Turns are taken in rounds of a fixed size, so that any number of processes
takes the same ones. The budget counts simulations.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import nsmallest
from math import fsum, inf
from typing import Any

import joblib

from sim.engine.choice import swept
from sim.runs.workers import unordered
from sim.search import tried
from sim.search.objective import Objective
from sim.search.space import Layout, Space
from sim.search.tried import Judged, Row

Report = Callable[[str, int, int], object]
ROUND = 8
"""Turns of a round: as many layouts may be simulated before one of them is known."""
CHUNK = 32
"""Groups that a worker judges at a time."""
BEST = 10
"""Layouts that are to be the best: no other may be better than the last of them."""
Place = tuple[int, int, int]
"""Number of GPUs, of the group, and of the member; -1: the group itself."""


@dataclass(frozen=True)
class Turn:
    """A layout or a group that waits for its turn."""

    cost: float  # the least that it can cost
    place: Place
    judged: Judged

    @property
    def kind(self) -> tuple[Any, ...]:
        """What decides most how far above its bound a layout is: what runs beside its kernels."""
        of = self.judged.layout
        shards = of["parallelism.zero"], of["parallelism.fsdp"] is not None
        return *shards, of["parallelism.cp"] > 1


@dataclass
class Search:
    """One search: what is known so far, and what waits."""

    spaces: Mapping[int, Space]  # by their number of GPUs
    objective: Objective
    budget: int
    most: float = inf  # cost beyond which no layout is wanted
    jobs: int = -1
    report: Report = lambda *_: None
    known: dict[Place, Row] = field(default_factory=dict)
    """The rows of layouts that have been tried, of an interrupted search too."""
    save: Callable[[Search], object] = lambda _: None
    waiting: list[Turn] = field(default_factory=list, init=False)
    full: dict[Place, Judged] = field(default_factory=dict, init=False)
    """Layouts and groups that do not fit, by what they hold at least."""
    tried: dict[Place, Row] = field(default_factory=dict, init=False)
    simulations: int = field(default=0, init=False)
    above: dict[tuple[Any, ...], list[float]] = field(default_factory=dict, init=False)
    """Costs over bounds of what was simulated, by kind."""

    def run(self) -> None:
        """Judge all groups, and take turns until no layout can be better or the budget is spent."""
        self._judge()
        self._turns()

    def _turns(self) -> None:
        while some := self._round():
            for turn, found in self._parallel(some):
                if isinstance(found, dict):
                    self._take(turn, found)
                else:
                    self._apart(turn, found)
            self.report("search", self.simulations, self.budget)
            self.save(self)

    def _judge(self) -> None:
        calls = [
            (at, begin, groups[begin : begin + CHUNK])
            for at, space in self.spaces.items()
            for groups in [list(space.groups())]
            for begin in range(0, len(groups), CHUNK)
        ]
        jobs = (joblib.delayed(_judged)(self.spaces[call[0]], *call, os.getpid()) for call in calls)
        for done, (at, begin, found) in enumerate(unordered(jobs, self.jobs)):
            for k, one in enumerate(found):
                if one is not None:
                    self._wait((at, begin + k, -1), one)
            self.report("groups of layouts", done + 1, len(calls))

    def _wait(self, place: Place, judged: Judged) -> None:
        """Let a layout or group wait for its turn, unless it does not fit."""
        if not judged.fits:
            self.full[place] = judged
            return
        least = self.objective.least(judged.bound, self.spaces[place[0]])
        self.waiting.append(Turn(least, place, judged))

    @property
    def limit(self) -> float:
        """The cost that a layout must stay below to be wanted."""
        costs = sorted(row["cost"] for row in self.tried.values() if row["outcome"] == "simulated")
        return min(self.most, costs[BEST - 1] if len(costs) >= BEST else inf)

    def _round(self) -> list[Turn]:
        """Take the next turns: fewer at the end of the budget, none where nothing is wanted."""
        limit, left = self.limit, self.budget - self.simulations
        expected = cache(self._expected)
        wanted = [
            (turn.cost * expected(turn.kind), turn.place, turn)
            for turn in self.waiting
            if turn.cost < limit and (left or turn.place[2] < 0)
        ]
        out = list[Turn]()
        for _, place, turn in nsmallest(ROUND, wanted):
            if place[2] < 0 or left:
                out.append(turn)
                left -= place[2] >= 0
        gone = {turn.place for turn in out}
        self.waiting = [turn for turn in self.waiting if turn.place not in gone]
        return out

    def _expected(self, kind: tuple[Any, ...]) -> float:
        """Return how far above its bound a cost of a kind is expected; unknown ones are tried."""
        own = self.above.get(kind, [])
        return fsum([1.0, *own]) / (1 + len(own))

    def _parallel(self, some: Sequence[Turn]) -> Iterator[tuple[Turn, Any]]:
        """Yield turns in their order, with their rows or their members."""
        new = [turn for turn in some if turn.place not in self.known]
        made: dict[Place, Any] = {turn.place: self.known.get(turn.place) for turn in some}
        calls = (
            joblib.delayed(_turn)(self.spaces[t.place[0]], t.place, t.judged.layout, os.getpid())
            for t in new
        )
        for place, found in unordered(calls, self.jobs) if new else ():
            made[place] = found
            if isinstance(found, dict):
                self.known[place] = found
        yield from ((turn, made[turn.place]) for turn in some)

    def _take(self, turn: Turn, row: Row) -> None:
        space = self.spaces[turn.place[0]]
        self.simulations += row["simulated"]
        cost = self.objective.cost(row, space) if row["outcome"] == "simulated" else None
        if cost is not None and turn.cost:
            self.above.setdefault(turn.kind, []).append(cost / turn.cost)
        known = {"bound_s": turn.judged.bound, "least_bytes": turn.judged.bytes, "cost": cost}
        self.tried[turn.place] = {**known, **row, **turn.judged.layout}

    def _apart(self, turn: Turn, found: Sequence[Judged]) -> None:
        for k, one in enumerate(found):
            self._wait((*turn.place[:2], k), one)


def _judged(
    space: Space, at: int, begin: int, groups: Sequence[Layout], asker: int
) -> tuple[int, int, list[Judged | None]]:
    _quiet(asker)
    return at, begin, [tried.group(space, one) for one in groups]


def _turn(space: Space, place: Place, layout: Layout, asker: int) -> tuple[Place, Any]:
    _quiet(asker)
    if place[2] < 0:
        return place, tried.members(space, layout)
    row = tried.simulated(space, layout)
    if os.getpid() != asker:
        swept(row.get("ops") or 0)
    return place, row


def _quiet(asker: int) -> None:
    """Leave Ctrl-C to the process that asked."""
    if os.getpid() != asker and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
