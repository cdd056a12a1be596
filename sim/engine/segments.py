"""How the engine reads a graph: queues cut into segments that run without a decision inside.

A *queue* is a stream. A communication during which the kernels of its rank stand still is moved
into their queue, since it always runs between the same two of them. A *segment* is a row of
consecutive ops of one queue: only its first op waits for ops of other queues, and only its last is
waited for by them. So one event per segment is enough, and the end of each op in it is the same
floating-point sum that one event per op would give. All of this is done on columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.engine.between import Flags
from sim.engine.uses import CHAIN, Uses
from sim.graph import Floats, Graph, Ints, Longs, ascending, offsets, owners, run_starts

Edges = tuple[Ints, Ints, Floats]  # later, earlier, seconds between


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments in order of queues, so those of one queue have consecutive numbers."""

    order: Ints  # position -> op: ops sorted by queue, then by issue
    first: Ints  # k + 1: segment s runs positions first[s]:first[s + 1]
    rank: Ints  # of each segment, a row of ``ranks``
    ranks: Ints  # the simulated ranks
    heads: Flags  # of each segment: nothing stands before it on its queue
    needs: Ints  # how many segments must end before it starts, the one before it included
    waiter_start: Ints  # k + 1, likewise into:
    waiter: Ints  # the segments that wait for a segment, the next of its queue apart
    waiter_lag: Floats
    lag: Floats  # of each segment: after the one before it on its queue
    part_start: Ints  # k + 1: of each segment, into part_row
    part_row: Longs  # memberships (rows of graph.part)
    of: Ints  # op -> its segment

    def __len__(self) -> int:
        return len(self.rank)


def segments(graph: Graph, facts: Uses) -> Segments:
    """Cut the queues of ``graph`` into as few segments as its waits and parts allow."""
    n = len(graph)
    moved = _moved(graph, facts)
    order, begins = _queues(graph, moved)
    parts = np.diff(graph.part_start)
    parts[moved] = 0
    later, earlier, lag = _edges(graph, facts, moved, order, begins)
    cut = np.zeros(n + 1, np.bool_)
    cut[begins] = cut[later] = cut[earlier + 1] = True
    alone = np.flatnonzero(parts[order])
    cut[alone] = cut[alone + 1] = True
    counts = (facts.how == CHAIN) & facts.several  # beside others, unlike a copy on their stream
    if counts.any():
        cut[1:-1] |= np.diff(counts[order])
    if graph.lag.strides[0]:
        cut[:-1] |= graph.lag[order] != 0
    first = np.flatnonzero(cut).astype(np.int32)
    segment_of = np.cumsum(cut[:-1], dtype=np.int32)
    segment_of -= 1
    heads = np.zeros(n + 1, np.bool_)
    heads[begins] = True
    heads = heads[first[:-1]]
    a, b = segment_of[earlier], segment_of[later]
    by_earlier = np.lexsort((b, a))
    leads = order[first[:-1]]
    rank = graph.rank[leads]
    runs = run_starts(rank)
    part_row, part_start = _part_rows(graph, leads, parts)
    of = np.empty(n, np.int32)
    of[order] = segment_of
    return Segments(
        order=order,
        first=first,
        rank=np.repeat(np.arange(len(runs), dtype=np.int32), np.diff(runs, append=len(rank))),
        ranks=rank[runs],
        heads=heads,
        needs=(np.bincount(b, minlength=len(heads)) + ~heads).astype(np.int32),
        waiter_start=offsets(np.bincount(a, minlength=len(heads))),
        waiter=b[by_earlier],
        waiter_lag=lag[by_earlier],
        lag=graph.lag[leads],
        part_start=part_start,
        part_row=part_row,
        of=of,
    )


def _compute_stream(graph: Graph) -> int:
    return graph.streams.index("compute") if "compute" in graph.streams else 0


def _queues(graph: Graph, moved: Flags) -> tuple[Ints, Longs]:
    """Return all ops by queue, then by issue, and where each queue begins and the last ends."""
    if not moved.any():
        order, begins = graph.stream_order()
        return order.astype(np.int32), begins
    stream = np.where(moved, _compute_stream(graph), graph.stream)
    key = graph.rank.astype(np.int64) * len(graph.streams) + stream
    counts = np.bincount(key)
    return ascending(key).astype(np.int32), offsets(counts[counts > 0]).astype(np.int64)


def _moved(graph: Graph, facts: Uses) -> Flags:
    """Return a flag per op: it joins the kernels' queue; at most one does between two kernels."""
    moved, ops = np.zeros(len(graph), np.bool_), np.flatnonzero(facts.in_line)
    if not len(ops) or "compute" not in graph.streams or graph.lag.strides[0]:
        return moved
    if graph.wait_lag.any():
        return moved
    low, high = facts.between.low[ops], facts.between.high[ops]
    within = (low >= 0) & (high == low + 1)
    ops, low = ops[within], low[within]
    gap = graph.rank[ops].astype(np.int64) * (len(graph) + 1) + low
    _, row, count = np.unique(gap, return_inverse=True, return_counts=True)
    moved[ops[count[row] == 1]] = True
    return moved


def _edges(graph: Graph, facts: Uses, moved: Flags, order: Ints, begins: Longs) -> Edges:
    """Return the waits that the order of queues does not imply: positions and lags in seconds.

    The positions are (later, earlier). A wait for an op further down the same queue is kept,
    although it can never be met: the engine then reports the deadlock.
    """
    n = len(graph)
    position = np.empty(n, np.int32)
    position[order] = np.arange(n, dtype=np.int32)
    apart, before = _stream_order_lost(graph, facts, moved)
    lag = graph.wait_lag
    later, earlier = position[owners(graph.wait_start)], position[graph.wait_on]
    if len(apart):
        later = np.concatenate([later, position[apart]])
        earlier = np.concatenate([earlier, position[before]])
        lag = np.concatenate([lag, np.zeros(len(apart))])
    queue = np.repeat(np.arange(len(begins) - 1, dtype=np.int32), np.diff(begins))
    kept = np.flatnonzero((queue[later] != queue[earlier]) | (earlier >= later) | (lag != 0))
    return later[kept], earlier[kept], lag[kept]


def _stream_order_lost(graph: Graph, facts: Uses, moved: Flags) -> tuple[Longs, Longs]:
    """Return neighbours on a stream (later, earlier) if one was moved and no kernel parts them."""
    if not moved.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order, begins = graph.stream_order()
    one, two = order[:-1], order[1:]
    same = np.ones(len(one), np.bool_)
    same[begins[1:-1] - 1] = False
    some = np.flatnonzero(same & (moved[one] != moved[two]))
    one, two = one[some], two[some]
    lost = facts.between.low[two] < facts.between.high[one]
    return two[lost], one[lost]


def _part_rows(graph: Graph, ops: Ints, parts: Ints) -> tuple[Longs, Ints]:
    """Return the memberships of these ops, op by op, and the row at which each op's begin.

    ``parts`` is how many each op of the graph has.
    """
    count = parts[ops]
    begin = offsets(count)
    return np.arange(begin[-1]) + np.repeat(graph.part_start[ops] - begin[:-1], count), begin
