"""Lags of a recording: the time at each op's start since the last of its needs was met.

An op of a GPU starts some microseconds after what it waited for. One that starts much later than
others of its rank and kind of need waited for something that the recording does not show. It keeps
its own delay, and is called a late start.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.analysis.activity import HOST, activities
from sim.analysis.relations import previous
from sim.graph import Bools, Floats, Graph, Longs, owners
from sim.timeline import Timeline

TIMES, LATE = 10.0, 100e-6
"""An op is late if its delay is over so many medians, and so many seconds above the median."""


def exact(timeline: Timeline) -> Timeline:
    """Return the timeline with the lags that make its graph, simulated, repeat it.

    An op's need is the op before it on its stream (for the first: second 0), or a wait. The last of
    its needs has all of the time since then as its lag; the others have none. Where a need ended
    after the op had started, as clocks of whole microseconds may show, its lag is 0.
    """
    graph = timeline.graph
    last, since = last_need(timeline)
    slack = np.maximum(timeline.start - since, 0.0)
    lag = np.where(last < 0, slack, 0.0)
    wait_lag = np.zeros(len(graph.wait_on))
    waited = np.flatnonzero(last >= 0)
    wait_lag[last[waited]] = slack[waited]
    return replace(timeline, graph=replace(graph, lag=lag, wait_lag=wait_lag))


def last_need(timeline: Timeline) -> tuple[Longs, Floats]:
    """Return per op the row of ``wait_on`` that ended last, or -1 (stream order), and its end."""
    graph, end = timeline.graph, timeline.end
    before = previous(graph)
    since = np.where(before >= 0, end[before], 0.0)
    last = np.full(len(graph), -1, np.int64)
    counts = np.diff(graph.wait_start)
    rows = np.flatnonzero(counts)
    if len(rows):
        ended = end[graph.wait_on]
        latest = np.maximum.reduceat(ended, graph.wait_start[rows])
        is_latest = np.flatnonzero(ended == np.repeat(latest, counts[rows]))
        of = np.searchsorted(graph.wait_start, is_latest, "right") - 1
        which = np.full(len(graph), len(ended), np.int64)
        np.minimum.at(which, of, is_latest)
        first = np.isin(rows, rows[before[rows] < 0])
        later = (latest >= since[rows]) | first
        last[rows[later]], since[rows[later]] = which[rows[later]], latest[later]
    return last, since


def late(timeline: Timeline) -> Bools:
    """Return which ops of a GPU start much later than others of their rank and kind of need.

    A need is the op before on the stream, the launch, or an op of another stream. Ops whose launch
    is not in the recording are not late: it is unknown when they were launched.
    """
    graph, start = timeline.graph, timeline.start
    last, since = last_need(timeline)
    host = is_host(graph)
    ops = np.flatnonzero(launched(graph, host) & ((last >= 0) | (previous(graph) >= 0)))
    waited = last[ops] >= 0
    on_host = np.zeros(len(ops), np.bool_)
    on_host[waited] = host[graph.wait_on[last[ops[waited]]]]
    sort = 3 * graph.rank[ops].astype(np.int64) + waited + on_host
    out = np.zeros(len(graph), np.bool_)
    for of in np.unique(sort):
        mine = ops[sort == of]
        delay = start[mine] - since[mine]
        typical = float(np.median(delay))
        out[mine] = delay > max(TIMES * typical, typical + LATE)
    return out


def is_host(graph: Graph) -> Bools:
    """Return which ops are the host's, (ops,)."""
    kinds = activities(graph)
    return np.asarray(kinds.code == kinds.names.index(HOST))


def launched(graph: Graph, host: Bools) -> Bools:
    """Return which ops of a GPU wait for an op of the host, which launches them, (ops,)."""
    out = np.zeros(len(graph), np.bool_)
    out[owners(graph.wait_start)[host[graph.wait_on]]] = True
    return out & ~host
