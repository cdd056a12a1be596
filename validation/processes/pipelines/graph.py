"""Turns the calls of all processes into a Graph, in which each op has the name of its cost.

Each rank is one thread: its stream ``compute`` runs steps and ``host`` its calls and the Python
between them, each after the one before it. A message is a send and a receive that meet, on a stream
per direction as the reader of recordings has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from schedules.csv import Move
from sim.graph import Builder, Communication, Fixed, Floats, Graph
from validation.processes.pipelines.calls import Call, Compute, Post, Wait
from validation.processes.pipelines.gaps import gaps
from validation.processes.pipelines.workload import Stages, Workload

WORK, OVER, SEND, RECEIVE = "work", "over", "isend", "irecv"
"""Seconds of a core: of a timed compute before it sleeps and after it woke, and of posts."""


class CallGraph(NamedTuple):
    """What processes do in one step."""

    graph: Graph
    costs: tuple[str, ...]  # of each op: the name of its cost; "" for ends of messages
    sleeps: Floats  # (ops,): seconds of a timed compute


def graph(of: Workload) -> CallGraph:
    """Return one op per step, post, message end and gap; steps are named as torch names them."""
    building = _Building(of.stages)
    for rank, calls in enumerate(of.program):
        building.rank(rank, calls)
    building.messages(of.bytes)
    return CallGraph(building.of.graph(), tuple(building.costs), np.array(building.sleeps))


class _Building:
    """A graph that is being built."""

    def __init__(self, stages: Stages) -> None:
        self.of, self.stages = Builder(), stages
        self.costs: list[str] = []
        self.sleeps: list[float] = []
        self.posted: dict[Move, tuple[int, int]] = {}  # its rank, and the op before; -1: none
        self.awaited: list[tuple[int, Move]] = []

    def rank(self, rank: int, calls: Sequence[Call]) -> None:
        """Add the calls of a rank, and the gaps before them, one after another."""
        last, ends = -1, list[Move]()
        for call, gap in zip([*calls, None], gaps(calls), strict=True):
            if gap:
                last = self._add(gap, rank, "host", gap, last)
                self.awaited += [(last, end) for end in ends]
                ends = []
            if isinstance(call, Compute):
                last = self._compute(call, rank, last)
            elif isinstance(call, Post):
                for end in call.ends:
                    self.posted[end] = (rank, last)
                    cost = SEND if end.end == "SEND" else RECEIVE
                    last = self._add(cost, rank, "host", cost, last)
            elif isinstance(call, Wait):
                ends += call.ends

    def _compute(self, of: Compute, rank: int, behind: int) -> int:
        step, timed = of.step, self.stages.seconds is not None
        if timed:
            self._add(WORK, rank, WORK, WORK, behind)
        return self._add(
            str(step), rank, "compute", OVER if timed else step.kind, behind,
            self.stages.nominal(of) if timed else 0.0,
            phase=step.kind, stage=step.stage, microbatch=step.microbatch,
        )  # fmt: skip

    def _add(
        self, name: str, rank: int, stream: str, cost: str, behind: int, sleeps: float = 0.0,
        work: Fixed | Communication | None = None, **place: Any,
    ) -> int:  # fmt: skip
        self.costs.append(cost)
        self.sleeps.append(sleeps)
        work = work or Fixed(0.0, "compute" if stream == "compute" else "host")
        waits = [behind] if behind >= 0 else []
        return self.of.add(name, rank, stream, work, waits, **place)

    def messages(self, size: float) -> None:
        """Add both ends of every message, and the waits for them."""
        ops = {end: self._end(end, size) for end in self.posted}
        for end in ops:
            if end.end == "SEND":
                self.of.join([ops[end], ops[end.other]])
        for op, end in self.awaited:
            self.of.wait(op, ops[end])

    def _end(self, end: Move, size: float) -> int:
        (rank, behind), (peer, _) = self.posted[end], self.posted[end.other]
        sends, back = end.end == "SEND", "" if end.kind == "F" else " grad"
        name = f"{'send' if sends else 'recv'} {end if sends else end.other}"
        stream = f"pp send →{peer}{back}" if sends else f"pp recv ←{peer}{back}"
        work = Communication("p2p", size, (rank, peer) if sends else (peer, rank), "pp")
        return self._add(
            name, rank, stream, "", behind, work=work,
            phase=end.kind, stage=end.stage, microbatch=end.microbatch,
        )  # fmt: skip
