"""Runs of the compiled event loop, slice by slice."""

from __future__ import annotations

from ctypes import POINTER, c_double, c_int32, c_int64
from typing import Any

import numpy as np

from sim.engine.between import Flags
from sim.engine.compiled import fields as of
from sim.engine.compiled.layout import Block, block
from sim.engine.compiled.loop import advance
from sim.engine.run import Progress, Stats
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Floats, Graph
from sim.machine.hardware import Machine

SLICE = 1 << 16
"""Events between two looks at progress and at interrupts: some 10 ms."""


class Runs:
    """Runs of one graph, on machines that differ in clocks, one after another in one memory."""

    def __init__(self) -> None:
        self._state: Block | None = None

    def __call__(
        self,
        graph: Graph,
        segs: Segments,
        facts: Uses,
        machine: Machine,
        progress: Progress | None,
        stats: Stats,
    ) -> tuple[Floats, Flags]:
        """Run the event loop until nothing is left that can go on.

        Return the bounds of segments and which of them have ended, for which see
        :class:`sim.engine.run.Run`; the next run writes over them.
        """
        self._state = state = block(graph, segs, facts, machine, self._state)
        _begin(state, segs)
        while advance.ctypes(*_pointers(state), SLICE):
            if progress is not None:
                progress(int(state.i[of.ENDED]), len(graph))
        if progress is not None:
            progress(len(graph), len(graph))
        _count(state, stats)
        left = state.halves(of.SEGMENTS, of.SEGMENT_WIDTH, len(segs) + 1)[:-1, of.LEFT_PARTS]
        return state.floats(of.BOUNDS, 1, len(segs.order) + len(segs)).ravel(), left < 0


def _pointers(state: Block) -> tuple[Any, ...]:
    """Return pointers to the block as half cells, integers and floats."""
    kinds = ((state.h, c_int32), (state.i, c_int64), (state.f, c_double))
    return tuple(array.ctypes.data_as(POINTER(kind)) for array, kind in kinds)


def _begin(state: Block, segs: Segments) -> None:
    """Schedule the segments that lead their queue and wait for nothing, or for a lag."""
    first = np.flatnonzero(segs.heads & ((segs.needs == 0) | (segs.lag > 0)))
    rows = state.halves(of.SEGMENTS, of.SEGMENT_WIDTH, len(segs) + 1)
    rows[first, of.NEEDS] += 1  # the beginning of time, and the lag after it
    time, turn = segs.lag[first], state.i[of.STEP] * rows[first, of.LAST_OP]
    order = np.lexsort((turn, time))  # what is sorted is a heap
    first, time, turn = first[order], time[order], turn[order]
    queue = rows[first, of.QUEUE]
    state.ints(of.QUEUES, of.QUEUE_WIDTH, queue.max(initial=-1) + 1)[queue, of.CURRENT] = first
    event, n = queue + state.i[of.LATE], len(first)
    heap = state.ints(of.HEAP, of.HEAP_WIDTH, n)
    heap[:, of.TURN], heap[:, of.EVENT] = turn, event
    state.floats(of.HEAP, of.HEAP_WIDTH, n)[:, of.TIME] = time
    state.i[state.i[of.PLACES] + event] = np.arange(n)
    state.i[of.EVENTS] = n


def _count(state: Block, stats: Stats) -> None:
    i = state.i
    stats.kernels_slowed += int(i[of.SLOWED])
    stats.flows += int(i[of.FLOWS])
    stats.flows_shared += int(i[of.SHARED])
    stats.settled += int(i[of.SETTLED])
