"""The communications of a rank that have kernels of that rank between or beside them.

A communication starts after the kernels it waits for and ends before the kernels that wait for it
(or for what comes behind it on its stream). In the order of a rank's compute stream that is an
interval (low, high); two communications with disjoint intervals never run at the same time, and
beside one whose interval is empty the stream stands still.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.graph import Graph, owners

Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max


class Between:
    """The intervals of a graph's communications; call it to ask whether two works never overlap.

    ``low`` is the last kernel that must have ended before an op starts, as a position in the order
    of its rank's kernels (-1: none), ``high`` the first that cannot start before it has ended.
    """

    def __init__(self, graph: Graph, row_op: Longs) -> None:
        self._streams = len(graph.streams)
        self.low, self.high = _intervals(graph)
        work = graph.part_work[graph.part].astype(np.int64)
        key = graph.rank[row_op].astype(np.int64) * self._streams + graph.stream[row_op]
        self._keys = int(key.max(initial=0)) + 1
        order = np.lexsort((row_op, key, work))
        self._op = row_op[order]
        self._group = work[order] * self._keys + key[order]

    def __call__(self, u: int, v: int, on_u: set[int], on_v: set[int]) -> bool:
        """Return whether works ``u`` and ``v`` never overlap.

        ``on_u`` and ``on_v`` are the streams on which every part of the work has a member, each as
        rank times the number of streams plus the stream.
        """
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
        order = np.argsort(self.low[ops], kind="stable")
        high = self.high[ops][order]
        latest = [np.maximum.accumulate(np.where(whose[order] == w, high, -1)) for w in (0, 1)]
        before = np.where(whose[order], latest[0], latest[1])  # of the other work's, so far
        return bool(np.all(before <= self.low[ops][order]))


def _intervals(graph: Graph) -> tuple[Longs, Longs]:
    n = len(graph)
    kernel = (np.diff(graph.part_start) == 0) & _on_compute(graph)
    position = np.cumsum(kernel) - 1  # over all ranks: comparable within one rank
    later = owners(graph.wait_start)
    on = graph.wait_on
    same = graph.rank[later] == graph.rank[on]
    low, high = np.full(n, -1, np.int64), np.full(n, NEVER, np.int64)
    after = same & kernel[on]
    np.maximum.at(low, later[after], position[on[after]])
    before = same & kernel[later]
    np.minimum.at(high, on[before], position[later[before]])
    order, begins = graph.stream_order()
    for a, b in pairwise(begins):
        ops = order[a:b]
        if not kernel[ops[0]]:
            low[ops] = np.maximum.accumulate(low[ops])
            high[ops] = np.minimum.accumulate(high[ops][::-1])[::-1]
    return low, high


def _on_compute(graph: Graph) -> Flags:
    """Return a flag per op: it is on the stream ``compute``, which runs one kernel at a time."""
    if "compute" not in graph.streams:
        return np.zeros(len(graph), np.bool_)
    return np.asarray(graph.stream == graph.streams.index("compute"))


def beside_compute(graph: Graph, is_kernel: Flags) -> Flags:
    """Return a flag per op: it is a communication beside which a kernel of its rank may run.

    No kernel can run beside a communication that waits for the kernel issued just before it, if
    the kernel issued just after waits for it: the compute stream stands still meanwhile. This does
    not hold for a rank that computes on several streams. ``is_kernel`` is a flag per op.
    """
    before, after = neighbours(graph, is_kernel)
    later = owners(graph.wait_start)
    waits_before, held = before < 0, after < 0
    waits_before[later[graph.wait_on == before[later]]] = True
    held[graph.wait_on[after[graph.wait_on] == later]] = True
    computes = np.zeros(int(graph.rank.max(initial=-1)) + 1, np.bool_)
    computes[graph.rank[is_kernel]] = True
    single = single_compute_stream(graph, is_kernel)
    free = ~(waits_before & held & single[graph.rank]) & computes[graph.rank]
    return free & (np.diff(graph.part_start) > 0)


def neighbours(graph: Graph, is_kernel: Flags) -> tuple[Longs, Longs]:
    """Return per op the kernels of its rank issued last before and first after it, -1 for none."""
    n = len(graph)
    index = np.arange(n)
    change = np.flatnonzero(np.diff(graph.rank)) + 1
    begin = np.zeros(n, np.int64)
    begin[change] = change
    begin = np.maximum.accumulate(begin)
    before = np.maximum.accumulate(np.where(is_kernel, index, -1))
    before = np.where(before >= begin, before, -1)
    last = np.append(change, n) - 1
    stop = last[np.searchsorted(last, index)]
    after = np.minimum.accumulate(np.where(is_kernel, index, n)[::-1])[::-1]
    return before, np.where(after <= stop, after, -1)


def single_compute_stream(graph: Graph, is_kernel: Flags) -> Flags:
    """Return a flag per rank number: all its kernels are on one stream, its ops contiguous."""
    size, streams = int(graph.rank.max(initial=-1)) + 1, len(graph.streams)
    used = np.zeros((size, streams), np.bool_)
    used[graph.rank[is_kernel], graph.stream[is_kernel]] = True
    runs = graph.rank[np.append(0, np.flatnonzero(np.diff(graph.rank)) + 1)]
    single: Flags = (used.sum(axis=1) <= 1) & (np.bincount(runs, minlength=size) <= 1)
    return single
