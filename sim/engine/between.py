"""The communications of a rank that have kernels of that rank between or beside them.

A communication starts after the kernels it waits for and ends before the kernels that wait for it
(or for what comes behind it on its stream). In the order of a rank's compute stream that is an
interval (low, high); two communications with disjoint intervals never run at the same time, and
beside one whose interval is empty the stream stands still.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.graph import Bools, Graph, Ints, Longs, owners, run_starts

Flags = Bools

NEVER = np.iinfo(np.int32).max


class Between:
    """The intervals of a graph's communications; call it to ask whether two works never overlap.

    ``low`` is the last kernel that must have ended before an op starts, as a position in the order
    of its rank's kernels (-1: none), ``high`` the first that cannot start before it has ended.
    """

    def __init__(self, graph: Graph, row_op: Longs) -> None:
        self._graph, self._row_op, self._streams = graph, row_op, len(graph.streams)

    @property
    def low(self) -> Ints:
        """Return ``low`` of each op."""
        return self._intervals[0]

    @property
    def high(self) -> Ints:
        """Return ``high`` of each op."""
        return self._intervals[1]

    @cached_property
    def _intervals(self) -> tuple[Ints, Ints]:  # which few graphs ask for
        return _intervals(self._graph)

    @cached_property
    def _grouped(self) -> tuple[int, Longs, Longs]:
        """Return the number of stream keys, and the ops of each (work, key), sorted by that."""
        graph, row_op = self._graph, self._row_op
        work = graph.part_work[graph.part].astype(np.int64)
        key = graph.rank[row_op].astype(np.int64) * self._streams + graph.stream[row_op]
        keys = int(key.max(initial=0)) + 1
        group = work * keys + key
        order = np.argsort(group, kind="stable")
        return keys, group[order], row_op[order]

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
        keys, groups, ops = self._grouped
        group = work * keys + key
        a, b = np.searchsorted(groups, [group, group + 1])
        return ops[a:b]

    def _disjoint(self, one: Longs, two: Longs) -> bool:
        ops = np.concatenate([one, two])
        whose = np.arange(len(ops)) < len(one)
        order = np.argsort(self.low[ops], kind="stable")
        high = self.high[ops][order]
        latest = [np.maximum.accumulate(np.where(whose[order] == w, high, -1)) for w in (0, 1)]
        before = np.where(whose[order], latest[0], latest[1])  # of the other work's, so far
        return bool(np.all(before <= self.low[ops][order]))


def _intervals(graph: Graph) -> tuple[Ints, Ints]:
    n = len(graph)
    kernel = (np.diff(graph.part_start) == 0) & _on_compute(graph)
    position = np.cumsum(kernel, dtype=np.int32) - 1  # over all ranks: comparable within one rank
    later = owners(graph.wait_start)
    on = graph.wait_on
    same = graph.rank[later] == graph.rank[on]
    low, high = np.full(n, -1, np.int32), np.full(n, NEVER, np.int32)
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


class Computing(NamedTuple):
    """Flags per rank number: how its kernels are spread over streams."""

    some: Flags  # it has kernels
    several: Flags  # on more than one stream
    single: Flags  # all on one stream, and the ops of the rank are contiguous


def computing(graph: Graph, is_kernel: Flags) -> Computing:
    """Return on how many streams each rank computes; ``is_kernel`` is a flag per op."""
    size, (order, begins) = int(graph.rank.max()) + 1, graph.stream_order()
    used = order[begins[:-1][np.logical_or.reduceat(is_kernel[order], begins[:-1])]]
    streams = np.bincount(graph.rank[used], minlength=size)
    runs = np.bincount(graph.rank[run_starts(graph.rank)], minlength=size)
    return Computing(streams > 0, streams > 1, (streams <= 1) & (runs <= 1))


def beside_compute(graph: Graph, ops: Longs, is_kernel: Flags, ranks: Computing) -> Flags:
    """Return a flag per op: it is one of ``ops``, and a kernel of its rank may run beside it.

    ``ops`` are communications, in ascending order.

    No kernel can run beside a communication that waits for the kernel issued just before it, if
    the kernel issued just after waits for it: the compute stream stands still meanwhile. This does
    not hold for a rank that computes on several streams. ``is_kernel`` is a flag per op.
    """
    if not len(ops):
        return np.zeros(len(graph), np.bool_)
    before, after = _neighbours(graph, ops, is_kernel)
    row = np.full(len(graph), -1, np.int32)
    row[ops] = np.arange(len(ops))
    waits_before, held = before < 0, after < 0
    later = owners(graph.wait_start)
    for mine, other, near, flags in (
        (later, graph.wait_on, before, waits_before),
        (graph.wait_on, later, after, held),
    ):
        of = row[mine]
        some = np.flatnonzero(of >= 0)
        of = of[some]
        flags[of[near[of] == other[some]]] = True
    rank, out = graph.rank[ops], np.zeros(len(graph), np.bool_)
    out[ops] = ~(waits_before & held & ranks.single[rank]) & ranks.some[rank]
    return out


def _neighbours(graph: Graph, ops: Longs, is_kernel: Flags) -> tuple[Longs, Longs]:
    """Return per op, none a kernel, its rank's kernels issued last before and first after it.

    Only kernels between which and the op no other rank has ops count; -1 stands for none.
    """
    kernels, runs = np.flatnonzero(is_kernel), run_starts(graph.rank)
    at = np.searchsorted(kernels, ops)
    run = np.searchsorted(runs, ops, side="right") - 1
    stop = np.append(runs, len(graph))[run + 1]
    before = np.append(kernels, -1)[at - 1]  # for the first op, the last entry
    after = np.append(kernels, len(graph))[at]
    return np.where(before >= runs[run], before, -1), np.where(after < stop, after, -1)
