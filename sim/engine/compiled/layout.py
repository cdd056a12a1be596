"""The block of cells in which a compiled run begins, filled from the columns of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiled import fields as of
from sim.engine.compiled.places import Places, places
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Floats, Graph, Ints, Longs
from sim.machine.hardware import Machine

ALIGNED = 8  # cells, of one cache line
FEW = 1 << 13  # rows of a table
MOST_PARTIALS = 64  # of sums: more than parts of 53 bits between the largest float and the smallest


@dataclass(frozen=True, eq=False)
class Block:
    """One block of cells: as half cells, as integers and as floats."""

    h: Ints
    i: Longs
    f: Floats

    def halves(self, base: int, width: int, rows: int) -> Ints:
        """Return a table of half cells, shape (rows, width)."""
        begin = self.i[base]
        return self.h[begin : begin + width * rows].reshape(rows, width)

    def ints(self, base: int, width: int, rows: int) -> Longs:
        """Return a table as integers, shape (rows, width)."""
        begin = self.i[base]
        return self.i[begin : begin + width * rows].reshape(rows, width)

    def floats(self, base: int, width: int, rows: int) -> Floats:
        """Return a table as floats, shape (rows, width)."""
        begin = self.i[base]
        return self.f[begin : begin + width * rows].reshape(rows, width)


def block(
    graph: Graph, segs: Segments, facts: Uses, machine: Machine, before: Block | None = None
) -> Block:
    """Return the state of a run in which nothing has started.

    ``before``, if given, is the block of a run of the same graph, which is written over: fresh
    memory costs more than what is written there.
    """
    where = places(graph, segs, facts, machine)
    out = _empty(_cells(graph, segs, machine, where), _halves(graph, segs), before)
    out.i[of.GPU_SMS], out.f[of.CONTENTION] = machine.gpu_sms, machine.contention
    out.i[of.NO_LAGS] = not segs.waiter_lag.any()
    out.i[of.STEP] = facts.op_turn[1] if len(graph) > 1 else 1  # turns are multiples of it
    kinds = (of.LATE, of.MOVES, of.ENDS, of.TAILS, of.LAGS)
    out.i[list(kinds)] = where.events
    _segments(out, segs, facts, where)
    _queues(out, segs, where)
    _works(out, facts, machine)
    _parts(out, graph, segs, facts, where)
    _positions(out, graph, segs, machine)
    return out


def _cells(graph: Graph, segs: Segments, machine: Machine, where: Places) -> dict[int, int]:
    """Return how many cells each table has."""
    n, k, edges = len(segs.order), len(segs), len(segs.waiter)
    links = len(machine.capacity)
    return {
        of.QUEUES: where.queues * of.QUEUE_WIDTH,
        of.GPUS: (len(segs.ranks) + 1) * of.GPU_WIDTH,
        of.HEAP: where.all_events * of.HEAP_WIDTH,
        of.PLACES: where.all_events,
        of.FACTORS: 0 if machine.times is None and machine.limits is None else n,
        of.BOUNDS: n + k,
        of.WAITER_LAGS: edges if segs.waiter_lag.any() else 0,
        of.LAG: k + 1 if segs.lag.any() else 0,
        of.WORKS: (len(graph.works) + 1) * of.WORK_WIDTH,
        of.LOADS: len(machine.link) * of.LOAD_WIDTH,
        of.TAIL: len(graph.part) if graph.part_tail.any() else 0,
        of.MOVING: where.flows * of.MOVING_WIDTH,
        of.FLOW: where.flows * of.FLOW_WIDTH,
        of.NODES: where.nodes * of.NODE_WIDTH,
        of.LINKS: links * of.LINK_WIDTH,
        of.DIRTY_LIST: len(segs.ranks),
        of.TOUCHED_LIST: links,
        of.FRONTIER: links,
        of.GROUP: where.flows,
        of.STARTS: where.flows + 1,
        **dict.fromkeys((of.ENTRIES, of.COEFFICIENTS), where.nodes),
        **dict.fromkeys((of.ALIVE, of.SPEEDS), where.flows),
        **dict.fromkeys((of.ROOM, of.USED, of.LEVEL, of.FLOOR), links),
        of.PARTIALS: MOST_PARTIALS,
    }


def _halves(graph: Graph, segs: Segments) -> dict[int, int]:
    """Return how many half cells each table of these has."""
    return {
        of.SEGMENTS: (len(segs) + 1) * of.SEGMENT_WIDTH,
        of.PARTS: (len(graph.part_work) + 1) * of.PART_WIDTH,
        of.POSITIONS: len(segs.order),
        of.WAITERS: len(segs.waiter),
        of.ROWS: len(segs.part_row),
        of.MEMBERS: len(graph.part),
    }


def _empty(cells: dict[int, int], halves: dict[int, int], before: Block | None) -> Block:
    """Return a block whose header says where each table begins; 0 for one without cells."""
    size = of.HEADER + sum(cells.values()) + sum(halves.values()) // 2 + len(halves)
    if before is not None and len(before.i) == size:
        i = before.i
        i[:] = 0
    else:
        whole = np.zeros(size + ALIGNED, np.int64)
        skip = -(whole.ctypes.data // whole.itemsize) % ALIGNED
        i = whole[skip : skip + size]
    begin = 2 * of.HEADER
    for base, count in halves.items():
        i[base] = begin if count else 0
        begin += count
    begin = (begin + 1) // 2
    for base, count in cells.items():
        i[base] = begin if count else 0
        begin += count
    return Block(i.view(np.int32), i, i.view(np.float64))


def _segments(out: Block, segs: Segments, facts: Uses, where: Places) -> None:
    k, leads = len(segs), segs.order[segs.first[:-1]]
    how = np.maximum.reduceat(facts.how[segs.order], segs.first[:-1]).astype(np.int32)
    how[segs.heads] += of.HEADS
    how[facts.beside[leads]] += of.BESIDE
    how += facts.sms[leads] << of.SMS_SHIFT
    columns: dict[int, NDArray[Any]] = {
        of.SLOT: segs.first + np.arange(k + 1, dtype=np.int32),
        of.LAST_OP: segs.order[segs.first[1:] - 1],
        of.NEEDS: segs.needs,
        of.FIRST_WAITER: segs.waiter_start,
        of.FIRST_ROW: segs.part_start,
        of.QUEUE: where.queue,
        of.LEFT_PARTS: np.diff(segs.part_start),
        of.HOW: how,
    }
    rows = out.halves(of.SEGMENTS, of.SEGMENT_WIDTH, k + 1)
    _fill(rows, columns)
    rows[-1, of.HOW] = of.HEADS  # nothing is behind the last
    out.halves(of.WAITERS, 1, len(segs.waiter))[:, 0] = segs.waiter
    if out.i[of.WAITER_LAGS]:
        out.floats(of.WAITER_LAGS, 1, len(segs.waiter))[:, 0] = segs.waiter_lag
    if out.i[of.LAG]:
        out.floats(of.LAG, 1, k)[:, 0] = segs.lag


def _fill(rows: Ints, columns: Mapping[int, NDArray[Any]]) -> None:
    """Write columns into a table, a few rows at a time, which then stay in the cache."""
    for a in range(0, len(rows), FEW):
        for column, values in columns.items():
            part = values[a : a + FEW]
            rows[a : a + len(part), column] = part


def _queues(out: Block, segs: Segments, where: Places) -> None:
    rows = out.ints(of.QUEUES, of.QUEUE_WIDTH, where.queues)
    rows[:, of.RUNNING] = -1
    rows[:, of.GPU] = segs.rank[segs.heads]
    gpus = out.ints(of.GPUS, of.GPU_WIDTH, len(segs.ranks) + 1)
    gpus[:, of.FIRST_QUEUE] = where.gpu_queue
    gpus[:, of.FIRST_MOVING] = where.queue_flow[where.gpu_queue]
    out.ints(of.PLACES, 1, where.all_events)[:] = -1
    out.ints(of.MOVING, of.MOVING_WIDTH, where.flows)[:, of.MOVING_PART] = -1


def _works(out: Block, facts: Uses, machine: Machine) -> None:
    n = len(machine.alone)
    rows = out.floats(of.WORKS, of.WORK_WIDTH, n + 1)[:-1]
    transfer = machine.transfer
    columns = {
        of.ARITHMETIC: machine.arithmetic,
        of.MEMORY: machine.memory,
        of.FIXED: machine.fixed,
        of.REST: machine.latency + transfer,
        of.ALONE: machine.alone,
        of.LATENCY: machine.latency + machine.fixed,  # fixed: of recorded groups
        of.TRANSFER: transfer,
        of.SPEED: machine.speed,
        of.WORK_HBM: machine.hbm,
        of.SIZE: machine.size,
    }
    for column, values in columns.items():
        rows[:, column] = values
    whole = out.ints(of.WORKS, of.WORK_WIDTH, n + 1)
    whole[:, of.FIRST_LOAD] = machine.link_start
    whole[:-1, of.ON_LINKS] = facts.on_links
    out.ints(of.LOADS, of.LOAD_WIDTH, len(machine.link))[:, of.LOAD_LINK] = machine.link
    loads = out.floats(of.LOADS, of.LOAD_WIDTH, len(machine.link))
    loads[:, of.COEFFICIENT] = machine.coefficient
    links = len(machine.capacity)
    out.ints(of.LINKS, of.LINK_WIDTH, links)[:, of.FIRST_ON] = -1
    out.floats(of.LINKS, of.LINK_WIDTH, links)[:, of.CAPACITY] = machine.capacity


def _parts(out: Block, graph: Graph, segs: Segments, facts: Uses, where: Places) -> None:
    n, members, step = len(graph.part_work), len(graph.part), out.i[of.STEP]
    first = facts.part_turn // step
    columns = {
        of.WORK: graph.part_work,
        of.MISSING: facts.members,
        of.FIRST_MEMBER: facts.member_start,
        of.FIRST_OP: first,
        of.AMONG: facts.part_turn - first * step,
        of.PART_PLACE: where.part_flow,
        of.FIRST_NODE: where.part_node,
        of.USES_HBM: facts.uses_hbm,
    }
    _fill(out.halves(of.PARTS, of.PART_WIDTH, n + 1), columns)
    out.halves(of.ROWS, 1, len(segs.part_row))[:, 0] = graph.part[segs.part_row]
    out.halves(of.MEMBERS, 1, members)[:, 0] = segs.of[facts.row_op[facts.member]]
    if out.i[of.TAIL]:
        out.floats(of.TAIL, 1, members)[:, 0] = graph.part_tail[facts.member]


def _positions(out: Block, graph: Graph, segs: Segments, machine: Machine) -> None:
    n = len(segs.order)
    out.halves(of.POSITIONS, 1, n)[:, 0] = graph.work[segs.order]
    out.floats(of.BOUNDS, 1, n + len(segs))[:] = np.nan
    times = machine.times
    if times is None:
        out.i[of.FACTORS] = 0
    else:
        out.floats(of.FACTORS, 1, n)[:, 0] = times[segs.order]
