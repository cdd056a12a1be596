"""How the engine reads a graph: streams cut into segments that run without a decision inside.

A *segment* is a run of consecutive kernels of one stream in which nothing waits for, or is waited
for by, anything else; only its ends meet other streams. One event per segment is then enough, and
the end of each kernel in it is the same floating-point sum that one event per kernel would give.
An op with parts is a segment by itself. Everything here is done on columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.graph import Graph, Ints, offsets

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments in stream order, so those of one stream have consecutive numbers."""

    order: Longs  # position -> op: ops sorted by stream, then by issue
    first: Ints  # k + 1: segment s runs positions first[s]:first[s + 1]
    rank: Ints  # of each segment, a row of ``ranks``
    ranks: Ints  # the simulated ranks
    heads: Flags  # of each segment: nothing stands before it on its stream
    needs: Ints  # how many segments must end before it starts, the one before it included
    waiter_start: Ints  # k + 1, likewise into:
    waiter: Ints  # the segments that wait for a segment, the next of its stream apart
    waiter_lag: NDArray[np.float64]
    lag: NDArray[np.float64]  # of each segment: after the one before it on its stream
    has_parts: Flags
    part_of: NDArray[np.int32]  # memberships, sorted by segment: the part
    part_start: Ints  # k + 1: of each segment, into part_of
    tail: NDArray[np.float64]  # of each membership

    def __len__(self) -> int:
        return len(self.rank)


def segments(graph: Graph) -> Segments:
    """Cut the streams of ``graph`` into as few segments as its waits and parts allow."""
    n = len(graph)
    order, begins = graph.stream_order()
    waits = _cross_waits(graph, order, begins)
    later, earlier, lag = waits
    n_parts = np.diff(graph.part_start)[order]
    cut = np.zeros(n + 1, np.bool_)
    cut[begins] = True
    cut[later] = True
    cut[earlier + 1] = True
    cut[:-1] |= n_parts > 0
    cut[1:] |= n_parts > 0
    if graph.lag.strides[0]:
        cut[:-1] |= graph.lag[order] != 0
    first = np.flatnonzero(cut).astype(np.int32)
    segment_of = (np.cumsum(cut[:-1]) - 1).astype(np.int32)
    heads = np.zeros(n + 1, np.bool_)
    heads[begins] = True
    heads = heads[first[:-1]]
    a, b = segment_of[earlier], segment_of[later]
    needs = np.bincount(b, minlength=len(heads)) + ~heads
    by_earlier = np.lexsort((b, a))
    ranks, rank = np.unique(graph.rank[order[first[:-1]]], return_inverse=True)
    has_parts = n_parts[first[:-1]] > 0
    part_rows, part_start = _part_rows(graph, order[first[:-1]])
    return Segments(
        order=order,
        first=first,
        rank=rank.astype(np.int32),
        ranks=ranks,
        heads=heads,
        needs=needs.astype(np.int32),
        waiter_start=offsets(np.bincount(a, minlength=len(heads))),
        waiter=b[by_earlier],
        waiter_lag=lag[by_earlier],
        lag=graph.lag[order[first[:-1]]],
        has_parts=has_parts,
        part_of=graph.part[part_rows],
        part_start=part_start,
        tail=graph.part_tail[part_rows],
    )


def _cross_waits(
    graph: Graph, order: Longs, begins: Longs
) -> tuple[Longs, Longs, NDArray[np.float64]]:
    """Positions (later, earlier) of the waits that stream order does not already imply, and lags.

    A wait for an op further down the same stream is kept: it can never be met, and the engine
    reports it as the deadlock that it is.
    """
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    later = position[np.repeat(np.arange(len(graph)), np.diff(graph.wait_start))]
    earlier = position[graph.wait_on]
    stream = np.searchsorted(begins, np.arange(len(order)), side="right")
    implied = (stream[later] == stream[earlier]) & (earlier < later) & (graph.wait_lag == 0)
    return later[~implied], earlier[~implied], graph.wait_lag[~implied]


def _part_rows(graph: Graph, ops: Longs) -> tuple[Longs, Ints]:
    """Rows of graph.part for these ops, one op behind another, and where each begins."""
    start = graph.part_start[ops].astype(np.int64)
    count = (graph.part_start[ops + 1] - start).astype(np.int64)
    begin = offsets(count)
    rows = np.arange(begin[-1]) + np.repeat(start - begin[:-1], count)
    return rows, begin


def beside_compute(graph: Graph, segs: Segments, is_compute: Flags) -> Flags:
    """Per segment: a communication beside which a compute kernel of its rank may run.

    ``is_compute`` is per work. It may not when it waits for the compute op issued just before it
    and the compute op issued just after waits for it; then that stream stands still meanwhile. (A
    rank that computes on several streams gets no such proof.)
    """
    n = len(graph)
    compute = is_compute[graph.work] & (np.diff(graph.part_start) == 0)
    rank_change = np.flatnonzero(np.diff(graph.rank)) + 1
    begin = np.zeros(n, np.int64)
    begin[rank_change] = rank_change
    begin = np.maximum.accumulate(begin)
    index = np.arange(n)
    before = np.maximum.accumulate(np.where(compute, index, -1))
    before = np.where(before >= begin, before, -1)
    last = np.append(rank_change, n) - 1
    stop = last[np.searchsorted(last, index)]
    after = np.minimum.accumulate(np.where(compute, index, n)[::-1])[::-1]
    after = np.where(after <= stop, after, -1)
    later = np.repeat(index, np.diff(graph.wait_start))
    waits_before = np.zeros(n, np.bool_)
    waits_before[later[graph.wait_on == before[later]]] = True
    waits_before |= before < 0
    held = np.zeros(n, np.bool_)
    held[graph.wait_on[after[graph.wait_on] == later]] = True
    held |= after < 0
    free = ~(waits_before & held) & np.isin(graph.rank, graph.rank[compute])
    single = _single_compute_stream(graph, compute)
    ops = segs.order[segs.first[:-1]]
    return segs.has_parts & (free | ~single[graph.rank])[ops]


def _single_compute_stream(graph: Graph, compute: Flags) -> Flags:
    """Per rank number: its compute is all on one stream, and its ops are contiguous in the graph."""
    size, streams = int(graph.rank.max(initial=-1)) + 1, len(graph.streams)
    used = np.zeros(size * streams, np.bool_)
    used[graph.rank[compute].astype(np.int64) * streams + graph.stream[compute]] = True
    runs = graph.rank[np.append(0, np.flatnonzero(np.diff(graph.rank)) + 1)]
    single = used.reshape(size, streams).sum(axis=1) <= 1
    return single & (np.bincount(runs, minlength=size) <= 1)
