"""Memory without durations: do ops allocate and free in an order that no duration can change?

Kernels of one stream run one after the other, and the compute stream waits at once for most other
ops that change memory. Where that holds on every rank, the peak is the same with any durations. It
does not hold where transfers run beside kernels and allocate or free memory themselves: gathers of
sharded parameters, reductions of sharded gradients, copies to the host.
"""

from __future__ import annotations

import numpy as np

from sim.graph import Graph, Ints, Longs, owners
from sim.timeline import Timeline


def untimed(graph: Graph) -> Timeline | None:
    """Return a timeline of ops of one second each if no duration can change the memory, else None.

    The ops run one after the other as they are issued. No duration matters if every op that changes
    what its rank holds starts after the end of the one issued before. That is so if both are on one
    stream, or if the op, or one before it on its stream, waits for the other or for a later op of
    the other's stream.
    """
    ops = np.flatnonzero(np.diff(graph.memory_start))
    ops = ops[np.argsort(graph.rank[ops], kind="stable")]
    one, other = ops[:-1], ops[1:]
    apart = (graph.rank[one] == graph.rank[other]) & (graph.stream[one] != graph.stream[other])
    if np.any(_awaited(graph, other[apart], graph.stream[one[apart]]) < one[apart]):
        return None
    begin = np.arange(len(graph), dtype=np.float64)
    return Timeline(graph, begin, begin + 1.0)


def _awaited(graph: Graph, ops: Longs, streams: Ints) -> Longs:
    """Return per op the last op of a stream that it, or one before it on its own, waits for.

    ``streams`` has that stream for each of ``ops``. A value below 0 means that there is none.
    """
    n = len(graph)

    def line(ops: Longs, stream: Ints) -> Longs:
        """Return a number, times n, for each (rank, its stream, the stream it waits for)."""
        own = graph.rank[ops].astype(np.int64) * len(graph.streams) + graph.stream[ops]
        return (own * len(graph.streams) + stream) * n

    wanted, waiting, on = line(ops, streams), owners(graph.wait_start), graph.wait_on
    of = line(waiting, graph.stream[on])
    mine = np.flatnonzero((graph.rank[waiting] == graph.rank[on]) & np.isin(of, wanted))
    mine = mine[np.argsort((of + waiting)[mine], kind="stable")]
    last = np.append(-1, np.maximum.accumulate((of + on)[mine]))
    return last[np.searchsorted((of + waiting)[mine], wanted + ops, side="right")] - wanted
