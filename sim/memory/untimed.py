"""Memory without time: which ops take and give back in an order that no duration can change?

Kernels of one stream run one after the other, and most of what else changes memory is awaited at
once. Where that holds on every rank, ops that all last as long need exactly what they need in life.
It does not where transfers run beside kernels and take or give back by themselves: gathers of
sharded parameters, reductions of split gradients, copies to the host.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.graph import Graph, owners
from sim.timeline import Timeline

Longs = NDArray[np.int64]


def untimed(graph: Graph) -> Timeline | None:
    """Ops of a second each, one after the other as they are issued, if memory needs no times.

    That is so where, of the ops of a rank that change what it holds, each starts after the one
    issued before has ended: on the same stream, or as it or an op before it waits for that one or
    for a later one of its stream.
    """
    ops = np.flatnonzero(np.diff(graph.memory_start))
    ops = ops[np.argsort(graph.rank[ops], kind="stable")]
    one, other = ops[:-1], ops[1:]
    apart = (graph.rank[one] == graph.rank[other]) & (graph.stream[one] != graph.stream[other])
    if np.any(_awaited(graph, other[apart], graph.stream[one[apart]]) < one[apart]):
        return None
    begin = np.arange(len(graph), dtype=np.float64)
    return Timeline(graph, begin, begin + 1.0)


def _awaited(graph: Graph, ops: Longs, streams: NDArray[np.int32]) -> Longs:
    """The last op of each stream for which an op, or one before it on its own stream, waits.

    Below 0: there is none.
    """
    n = len(graph)

    def line(ops: Longs, stream: NDArray[np.int32]) -> Longs:
        """A number for the waits of a stream of a rank for a stream, times n."""
        own = graph.rank[ops].astype(np.int64) * len(graph.streams) + graph.stream[ops]
        return (own * len(graph.streams) + stream) * n

    wanted, waiting, on = line(ops, streams), owners(graph.wait_start), graph.wait_on
    of = line(waiting, graph.stream[on])
    mine = np.flatnonzero((graph.rank[waiting] == graph.rank[on]) & np.isin(of, wanted))
    mine = mine[np.argsort((of + waiting)[mine], kind="stable")]
    last = np.append(-1, np.maximum.accumulate((of + on)[mine]))
    return last[np.searchsorted((of + waiting)[mine], wanted + ops, side="right")] - wanted
