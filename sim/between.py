"""Communications of one rank that cannot overlap, since kernels of that rank lie between them.

A communication starts after the kernels it waits for and ends before the kernels that wait for it
(or for what comes behind it on its stream). In the order of a rank's compute stream that is an
interval; two communications with disjoint intervals never run at the same time.
"""

from __future__ import annotations

import numpy as np

from sim.graph import Graph
from sim.segments import Longs, Segments

NEVER = np.iinfo(np.int64).max


class Between:
    """Intervals of a graph's communications, and whether those of two works are disjoint."""

    def __init__(self, graph: Graph, segs: Segments, row_op: Longs) -> None:
        self._streams = len(graph.streams)
        self._low, self._high = _intervals(graph)
        work = graph.part_work[segs.part_of].astype(np.int64)
        key = graph.rank[row_op].astype(np.int64) * self._streams + graph.stream[row_op]
        self._order = np.lexsort((row_op, key, work))
        self._op = row_op[self._order]
        self._group = work[self._order] * (int(key.max(initial=0)) + 1) + key[self._order]
        self._keys = int(key.max(initial=0)) + 1

    def __call__(self, u: int, v: int, on_u: set[int], on_v: set[int]) -> bool:
        """Whether works u and v, with a member of every part on these streams, never overlap."""
        for a in sorted(on_u):
            for b in sorted(on_v):
                if a // self._streams == b // self._streams:
                    return self._disjoint(self._ops(u, a), self._ops(v, b))
        return False

    def _ops(self, work: int, key: int) -> Longs:
        group = work * self._keys + key
        a, b = np.searchsorted(self._group, [group, group + 1])
        return self._op[a:b]

    def _disjoint(self, one: Longs, two: Longs) -> bool:
        ops = np.concatenate([one, two])
        whose = np.arange(len(ops)) < len(one)
        order = np.argsort(self._low[ops], kind="stable")
        high = self._high[ops][order]
        latest = [np.maximum.accumulate(np.where(whose[order] == w, high, -1)) for w in (0, 1)]
        before = np.where(whose[order], latest[0], latest[1])  # of the other work's, so far
        return bool(np.all(before <= self._low[ops][order]))


def _intervals(graph: Graph) -> tuple[Longs, Longs]:
    """Per op: the last kernel that must have ended before it starts, as a position in the order of
    its rank's kernels (-1: none), and the first that cannot start before it has ended."""
    n = len(graph)
    kernel = (np.diff(graph.part_start) == 0) & _on_one_stream(graph)
    position = np.cumsum(kernel) - 1  # over all ranks: comparable within one rank
    later = np.repeat(np.arange(n), np.diff(graph.wait_start))
    on = graph.wait_on
    same = graph.rank[later] == graph.rank[on]
    low, high = np.full(n, -1, np.int64), np.full(n, NEVER, np.int64)
    after = same & kernel[on]
    np.maximum.at(low, later[after], position[on[after]])
    before = same & kernel[later]
    np.minimum.at(high, on[before], position[later[before]])
    order, begins = graph.stream_order()
    for a, b in zip(begins[:-1], begins[1:], strict=True):
        ops = order[a:b]
        if not kernel[ops[0]]:
            low[ops] = np.maximum.accumulate(low[ops])
            high[ops] = np.minimum.accumulate(high[ops][::-1])[::-1]
    return low, high


def _on_one_stream(graph: Graph) -> np.ndarray:
    """Ops on the stream ``compute``, whose kernels run one after another on each rank."""
    if "compute" not in graph.streams:
        return np.zeros(len(graph), np.bool_)
    return np.asarray(graph.stream == graph.streams.index("compute"))
