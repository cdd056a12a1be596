"""A helper of analyses: the times of a graph's ops when each takes given seconds (longest paths).

The engine gives the same times. This is faster for many sets of seconds, since the order in which
ops are computed is found only once. Nothing is shared, and there is no machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.graph import Floats, Graph, Longs
from sim.timeline import Timeline


class Seconds(NamedTuple):
    """How long each op takes, and how long each member of a part takes once all have started."""

    op: Floats  # one per op; of no meaning for members of parts
    member: Floats  # one per membership, a row of graph.part


def taken(timeline: Timeline) -> Seconds:
    """Return the seconds that ops and parts took; a part takes as long as its shortest member.

    The longer members also waited for the last one to come. A member of several parts may have
    ended with another of them; a part with such a member takes no longer than from the last start
    of its members to their first end.
    """
    graph = timeline.graph
    counts = np.diff(graph.part_start)
    owner = np.repeat(np.arange(len(graph)), counts)
    seconds = timeline.end - timeline.start
    shortest, ended = (np.full(len(graph.part_work), np.inf) for _ in range(2))
    began = np.full(len(graph.part_work), -np.inf)
    batched = np.zeros(len(graph.part_work), np.bool_)
    np.minimum.at(shortest, graph.part, seconds[owner])
    np.minimum.at(ended, graph.part, timeline.end[owner])
    np.maximum.at(began, graph.part, timeline.start[owner])
    batched[graph.part[counts[owner] > 1]] = True
    between = np.maximum(ended - began, 0.0)
    return Seconds(seconds, np.where(batched, np.minimum(shortest, between), shortest)[graph.part])


class Paths:
    """The longest paths of a graph, from its first ops on.

    Nodes are the start and the end of each op, and the moment at which all members of a part are
    there. An edge goes from the end of an op to the start of each that waits for it, and so on; a
    node needs only nodes of lower levels. With ``apart``, steps are independent and each begins at
    0 s. Raises InputError for a graph whose ops wait for each other in a circle.
    """

    def __init__(self, graph: Graph, apart: bool = False) -> None:
        n = len(graph)
        self._graph = graph
        index = np.arange(n)
        owner = np.repeat(index, np.diff(graph.wait_start))
        order, begins = graph.stream_order()
        same = np.ones(max(n - 1, 0), np.bool_)
        same[begins[1:-1] - 1] = False
        member = np.repeat(index, np.diff(graph.part_start))
        alone = np.flatnonzero(np.diff(graph.part_start) == 0)
        source: list[Longs] = [
            graph.wait_on + np.int64(n),
            order[:-1][same] + n,
            alone,
            member,
            graph.part + np.int64(2 * n),
        ]
        target: list[Longs] = [
            owner,
            order[1:][same],
            alone + n,
            graph.part + np.int64(2 * n),
            member + n,
        ]
        lags = [graph.wait_lag, graph.lag[order[1:][same]]]
        self._alone, self._tail = alone, graph.part_tail
        sizes = [len(rows) for rows in source]
        self._op_edges = slice(sizes[0] + sizes[1], sum(sizes[:3]))
        self._member_edges = slice(sum(sizes[:4]), None)
        self._source, self._target = np.concatenate(source), np.concatenate(target)
        self._weight = np.concatenate([*lags, np.zeros(sum(sizes[2:]))])
        heads = order[np.append(True, ~same)] if n else order
        if apart:
            heads = np.append(heads, self._drop_between_steps(sizes[0], sizes[0] + sizes[1]))
        self._begin = np.zeros(2 * n + len(graph.part_work))
        self._begin[heads] = graph.lag[heads]
        self._levels = _levels(self._source, self._target, len(self._begin))

    def _drop_between_steps(self, waits: int, size: int) -> Longs:
        """Remove the edges between steps; return the ops that then are the first of a stream."""
        n, step = len(self._graph), self._graph.step
        crosses = np.zeros(len(self._source), np.bool_)
        crosses[:size] = step[self._source[:size] - n] != step[self._target[:size]]
        self._source = np.where(crosses, -1, self._source)
        heads: Longs = self._target[waits:size][crosses[waits:size]]
        return heads

    def run(self, seconds: Seconds) -> Timeline:
        """Return the timeline in which everything starts as early as it can."""
        n, weight, at = len(self._graph), self._weight.copy(), self._begin.copy()
        weight[self._op_edges] = seconds.op[self._alone]
        weight[self._member_edges] = seconds.member
        tail = np.zeros(len(weight))
        tail[self._member_edges] = self._tail
        for edges, nodes, begins in self._levels:
            arrive = at[self._source[edges]] + weight[edges] + tail[edges]
            at[nodes] = np.maximum(at[nodes], np.maximum.reduceat(arrive, begins))
        return Timeline(self._graph, at[:n], at[n : 2 * n])


def _levels(source: Longs, target: Longs, nodes: int) -> list[tuple[Longs, Longs, Longs]]:
    """Return for each level its edges by target, its targets, and where each one's edges begin."""
    edges = np.flatnonzero(source >= 0)
    level = np.zeros(nodes, np.int64)
    missing = np.bincount(target[edges], minlength=nodes)
    by_source = edges[np.argsort(source[edges], kind="stable")]
    first = np.searchsorted(source[by_source], np.arange(nodes + 1))
    ready, depth, seen = np.flatnonzero(missing == 0), 0, 0
    while len(ready):
        level[ready] = depth
        seen += len(ready)
        count = first[ready + 1] - first[ready]
        rows = np.repeat(first[ready] - np.cumsum(count) + count, count) + np.arange(count.sum())
        reached, times = np.unique(target[by_source[rows]], return_counts=True)
        missing[reached] -= times
        ready, depth = reached[missing[reached] == 0], depth + 1
    if seen < nodes:
        raise InputError("the ops wait for each other in a circle; simulate them to see which")
    out = []
    order = edges[np.lexsort((target[edges], level[target[edges]]))]
    bounds = np.searchsorted(level[target[order]], np.arange(depth + 1))
    for a, b in pairwise(bounds):
        if a < b:
            some = order[a:b]
            nodes_of, begins = np.unique(target[some], return_index=True)
            out.append((some, nodes_of, begins))
    return out
