"""The block of cells in which a compiled run begins, filled from the columns of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.engine.compiled import fields as of
from sim.engine.compiled.places import Places, places
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Graph
from sim.machine.hardware import Machine

Longs = NDArray[np.int64]
Floats = NDArray[np.float64]
ALIGNED = 8  # cells, of one cache line
MOST_PARTIALS = 64  # of sums: more than parts of 53 bits between the largest float and the smallest


@dataclass(frozen=True, eq=False)
class Block:
    """One block of cells, as integers and as floats."""

    i: Longs
    f: Floats

    def ints(self, base: int, width: int, rows: int) -> Longs:
        """Return a table as integers, shape (rows, width)."""
        begin = self.i[base]
        return self.i[begin : begin + width * rows].reshape(rows, width)

    def floats(self, base: int, width: int, rows: int) -> Floats:
        """Return a table as floats, shape (rows, width)."""
        begin = self.i[base]
        return self.f[begin : begin + width * rows].reshape(rows, width)


def block(graph: Graph, segs: Segments, facts: Uses, machine: Machine) -> Block:
    """Return the state of a run in which nothing has started."""
    where = places(graph, segs, facts, machine)
    out = _empty(_cells(graph, segs, machine, where))
    out.i[of.GPU_SMS], out.f[of.CONTENTION] = machine.gpu_sms, machine.contention
    out.i[of.NO_LAGS] = not segs.waiter_lag.any()
    kinds = (of.LATE, of.MOVES, of.ENDS, of.TAILS, of.LAGS)
    out.i[list(kinds)] = where.events
    _segments(out, segs, facts, where)
    _queues(out, segs, where)
    _works(out, facts, machine)
    _parts(out, graph, segs, facts, machine, where)
    _positions(out, graph, segs, machine)
    return out


def _cells(graph: Graph, segs: Segments, machine: Machine, where: Places) -> dict[int, int]:
    """Return how many cells each table has."""
    n, k, edges = len(graph), len(segs), len(segs.waiter)
    parts, links = len(graph.part_work), len(machine.capacity)
    return {
        of.SEGMENTS: (k + 1) * of.SEGMENT_WIDTH,
        of.QUEUES: where.queues * of.QUEUE_WIDTH,
        of.GPUS: (len(segs.ranks) + 1) * of.GPU_WIDTH,
        of.PARTS: (parts + 1) * of.PART_WIDTH,
        of.HEAP: where.all_events * of.HEAP_WIDTH,
        of.PLACES: where.all_events,
        of.POSITIONS: n,
        of.FACTORS: 0 if machine.times is None else n,
        of.BOUNDS: n + k,
        of.WAITERS: edges,
        of.WAITER_LAGS: edges if segs.waiter_lag.any() else 0,
        of.LAG: k + 1 if segs.lag.any() else 0,
        of.WORKS: (len(graph.works) + 1) * of.WORK_WIDTH,
        of.LOADS: len(machine.link) * of.LOAD_WIDTH,
        of.ROWS: len(segs.part_row),
        of.MEMBERS: len(graph.part) * of.MEMBER_WIDTH,
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


def _empty(cells: dict[int, int]) -> Block:
    """Return a block whose header says where each table begins; 0 for one without cells."""
    size = of.HEADER + sum(cells.values()) + ALIGNED
    whole = np.zeros(size, np.int64)
    skip = -(whole.ctypes.data // whole.itemsize) % ALIGNED
    i = whole[skip:]
    begin = of.HEADER
    for base, count in cells.items():
        i[base] = begin if count else 0
        begin += count
    return Block(i, i.view(np.float64))


def _segments(out: Block, segs: Segments, facts: Uses, where: Places) -> None:
    k, leads = len(segs), segs.order[segs.first[:-1]]
    rows = out.ints(of.SEGMENTS, of.SEGMENT_WIDTH, k + 1)
    rows[:, of.SLOT] = segs.first + np.arange(k + 1)
    rows[:-1, of.SEGMENT_TURN] = facts.op_turn[segs.order[segs.first[1:] - 1]]
    rows[:-1, of.NEEDS] = segs.needs
    rows[:, of.FIRST_WAITER] = segs.waiter_start
    rows[:, of.FIRST_ROW] = segs.part_start
    rows[:-1, of.QUEUE] = where.queue
    rows[:-1, of.LEFT_PARTS] = np.diff(segs.part_start)
    how = np.maximum.reduceat(facts.how[segs.order], segs.first[:-1]).astype(np.int64)
    how += of.HEADS * segs.heads + of.BESIDE * facts.beside[leads]
    rows[:-1, of.HOW] = how + (facts.sms[leads].astype(np.int64) << of.SMS_SHIFT)
    rows[-1, of.HOW] = of.HEADS  # nothing is behind the last
    out.ints(of.WAITERS, 1, len(segs.waiter))[:, 0] = segs.waiter
    if out.i[of.WAITER_LAGS]:
        out.floats(of.WAITER_LAGS, 1, len(segs.waiter))[:, 0] = segs.waiter_lag
    if out.i[of.LAG]:
        out.floats(of.LAG, 1, k)[:, 0] = segs.lag


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


def _parts(
    out: Block, graph: Graph, segs: Segments, facts: Uses, machine: Machine, where: Places
) -> None:
    n, members = len(graph.part_work), len(graph.part)
    rows = out.ints(of.PARTS, of.PART_WIDTH, n + 1)
    rows[:-1, of.WORK] = graph.part_work
    rows[:-1, of.MISSING] = facts.members
    rows[:, of.FIRST_MEMBER] = facts.member_start
    rows[:-1, of.PART_TURN] = facts.part_turn
    rows[:-1, of.PART_PLACE] = where.part_flow
    rows[:-1, of.FIRST_NODE] = where.part_node
    rows[:-1, of.USES_HBM] = facts.uses_hbm
    seconds = machine.latency + machine.fixed + machine.transfer
    out.floats(of.PARTS, of.PART_WIDTH, n + 1)[:-1, of.PART_SECONDS] = seconds[graph.part_work]
    out.ints(of.ROWS, 1, len(segs.part_row))[:, 0] = graph.part[segs.part_row]
    segment = segs.of[facts.row_op[facts.member]]
    out.ints(of.MEMBERS, of.MEMBER_WIDTH, members)[:, of.MEMBER_SEGMENT] = segment
    out.floats(of.MEMBERS, of.MEMBER_WIDTH, members)[:, of.TAIL] = graph.part_tail[facts.member]


def _positions(out: Block, graph: Graph, segs: Segments, machine: Machine) -> None:
    n = len(graph)
    out.ints(of.POSITIONS, 1, n)[:, 0] = graph.work[segs.order]
    out.floats(of.BOUNDS, 1, n + len(segs))[:] = np.nan
    times = machine.times
    if times is not None:
        out.floats(of.FACTORS, 1, n)[:, 0] = times[segs.order]
