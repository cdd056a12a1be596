"""The state that the parts of the engine share during one simulation."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.engine.clock import Clock, Due
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Graph
from sim.machine.hardware import Machine
from sim.timeline import Timeline

Progress = Callable[[int, int], None]  # (ops done, ops in all)


@dataclass
class Stats:
    """How often activities met on links and GPUs, so that rates were shared again."""

    kernels_slowed: int = 0  # chains of kernels whose end moved
    flows: int = 0  # communications on links that others may use too
    flows_shared: int = 0  # of these, speeds that were found by sharing among several
    settled: int = 0  # instants after which something was shared anew
    boost: Timeline | None = None  # the step at boost clock, if power then lowered the clock
    asks_later: bool = False  # whether to find what comes next
    later: float | None = None  # seconds, see sim.engine.later


@dataclass(frozen=True)
class Run:
    """One simulation; for segments and their positions see :class:`~.segments.Segments`."""

    env: Clock
    graph: Graph
    segs: Segments
    machine: Machine
    facts: Uses
    stats: Stats
    bounds: array[float]  # of segment s: its start and its ends, from slot first[s] + s on
    done: bytearray  # of each segment: whether it has ended
    needs: list[int]  # of each segment: how many ends it still waits for
    start: list[Callable[[int], None]]  # of each segment: what starts it; filled in when known
    first: list[int]
    turn: list[int]  # of each segment: which of the events of an instant is its own
    work: array[int]  # of each position
    alone: array[float]  # of each position: seconds when nothing else runs

    @cached_property
    def events(self) -> list[Due]:
        """Of each segment: the event of its queue, which runs one segment at a time."""
        queue = np.cumsum(self.segs.heads) - 1
        each = [Due(_nothing, None) for _ in range(queue[-1] + 1)]
        return [each[q] for q in queue.tolist()]

    @cached_property
    def missing(self) -> list[int]:
        """Of each part: how many of its members have not started."""
        out: list[int] = self.facts.members.tolist()
        return out

    @cached_property
    def part_turn(self) -> list[int]:
        """Of each part: which of the events of an instant is its own."""
        out: list[int] = self.facts.part_turn.tolist()
        return out

    @cached_property
    def member_start(self) -> list[int]:
        """Of each part: the row of ``members`` at which its own begin; one more than there are."""
        out: list[int] = self.facts.member_start.tolist()
        return out

    @cached_property
    def members(self) -> list[int]:
        """Return the segments that are members of parts, part by part."""
        facts = self.facts
        out: list[int] = self.segs.of[facts.row_op[facts.member]].tolist()
        return out

    @classmethod
    def of(cls, graph: Graph, segs: Segments, facts: Uses, machine: Machine, stats: Stats) -> Run:
        """Return a run at its beginning: nothing has started, and no time is known."""
        work = graph.work[segs.order]
        alone = machine.alone[work]
        if machine.times is not None:
            alone *= machine.times[segs.order]
        return cls(
            Clock(),
            graph,
            segs,
            machine,
            facts,
            stats,
            bounds=array("d", np.full(len(segs.order) + len(segs), np.nan).tobytes()),
            done=bytearray(len(segs)),
            needs=segs.needs.tolist(),
            start=[],
            first=segs.first.tolist(),
            turn=facts.op_turn[segs.order[segs.first[1:] - 1]].tolist(),  # of its last op
            work=array("i", work.astype(np.int32).tobytes()),
            alone=array("d", alone.tobytes()),
        )


def _nothing(_: Due) -> None:
    """Do nothing: what an event does that is not scheduled yet."""
