"""Recorded runs as graphs to simulate again: with the host as it was, or as a host behaves.

All need only a recording's timeline, so they work for every format. Simulate them with
:func:`sim.engine.simulate` on :func:`sim.hardware.ideal`: their works are ``Fixed``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.analysis.activity import HOST, activities
from sim.analysis.relations import previous
from sim.graph import Fixed, Floats, Graph, offsets, owners
from sim.timeline import Timeline
from traces.lags import last_need
from traces.recording import Recording

Rows = NDArray[np.int64]
T = TypeVar("T", bound=Hashable)
CLOCK = "clock"  # stream of the op, of no length, that recorded host times count from


def recorded(recording: Recording) -> Graph:
    """The graph that repeats the recording to the float: every unexplained delay is a lag."""
    return recording.timeline.graph


def modelled(recording: Recording) -> Graph:
    """The host by its gaps, the GPU by what it waits for.

    Host ops follow the one before them after the recorded gap, or the GPU ops that they wait for.
    Ops of the GPU start a typical delay after what they waited for last: the median of their rank
    and sort of need (stream order, launch, another stream), and never later than recorded where
    another need came last. Ops without a launch in the file keep their recorded delay.
    """
    graph = recording.timeline.graph
    return _typical(recording.timeline, _is_host(graph))


def anchored(recording: Recording) -> Graph:
    """As :func:`modelled`, but every host op begins when it did, if its thread is free then."""
    timeline = recording.timeline
    host = _is_host(timeline.graph)
    graph = _typical(timeline, host)
    lag = np.where(host, 0.0, graph.lag)
    counts = np.diff(graph.wait_start)
    kept = ~np.repeat(host, counts)
    graph = replace(
        graph,
        lag=lag,
        wait_start=offsets(np.where(host, 0, counts)),
        wait_on=graph.wait_on[kept],
        wait_lag=graph.wait_lag[kept],
    )
    return _from_clock(graph, host, timeline.start)


def _is_host(graph: Graph) -> NDArray[np.bool_]:
    kinds = activities(graph)
    return np.asarray(kinds.code == kinds.names.index(HOST))


def _typical(timeline: Timeline, host: NDArray[np.bool_]) -> Graph:
    """Replace the lags of GPU ops that the host launched by typical ones."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    later = owners(graph.wait_start)
    launched = np.zeros(len(graph), np.bool_)
    launched[later[host[graph.wait_on]]] = True
    some = launched & ~host
    before = previous(graph)
    last, _ = last_need(timeline)

    in_order = np.flatnonzero(some & (before >= 0))
    slack = start[in_order] - end[before[in_order]]
    lag = graph.lag.copy()
    lag[some] = 0.0
    lag[in_order] = _medians(graph.rank[in_order], slack, last[in_order] < 0)

    rows = np.flatnonzero(some[later])
    slack = start[later[rows]] - end[graph.wait_on[rows]]
    sort = 2 * graph.rank[later[rows]] + host[graph.wait_on[rows]]
    wait_lag = graph.wait_lag.copy()
    wait_lag[rows] = _medians(sort, slack, last[later[rows]] == rows)
    return replace(graph, lag=lag, wait_lag=wait_lag)


def _medians(sort: NDArray[np.integer], slack: Floats, decided: NDArray[np.bool_]) -> Floats:
    """Per need its typical delay: the median, over its sort, of those that decided a start.

    A need that did not decide the start was met early enough: its delay is at most its slack.
    """
    out = np.zeros(len(slack))
    for of in np.unique(sort):
        mine = sort == of
        deciding = slack[mine & decided]
        out[mine] = np.median(deciding) if len(deciding) else 0.0
    return np.clip(np.where(decided, out, np.minimum(out, slack)), 0.0, None)


def _from_clock(graph: Graph, host: NDArray[np.bool_], start: Floats) -> Graph:
    """Add an op of no length in front, for which every host op waits as long as it was recorded."""
    first = graph.ranks()[:1]
    counts = np.where(host, 1, np.diff(graph.wait_start))
    wait_start = offsets(np.append(0, counts))
    on_clock = np.repeat(host, counts)
    wait_on, wait_lag = np.zeros(len(on_clock), np.int32), np.zeros(len(on_clock))
    wait_on[~on_clock], wait_lag[~on_clock] = graph.wait_on + 1, graph.wait_lag
    wait_lag[on_clock] = start[host]

    def front(column: NDArray[Any], value: float) -> NDArray[Any]:
        return np.append(np.array([value], column.dtype), column)

    names, name = _with(graph.names, CLOCK)
    works, work = _with(graph.works, Fixed(0.0, HOST))
    streams, stream = _with(graph.streams, CLOCK)
    return replace(
        graph,
        names=names,
        works=works,
        streams=streams,
        name=front(graph.name, name),
        work=front(graph.work, work),
        stream=front(graph.stream, stream),
        rank=front(graph.rank, int(first[0]) if len(first) else 0),
        phase=front(graph.phase, 0),
        stage=front(graph.stage, -1),
        microbatch=front(graph.microbatch, -1),
        layer=front(graph.layer, -1),
        step=front(graph.step, 0),
        lag=front(graph.lag, 0.0),
        wait_start=wait_start,
        wait_on=wait_on,
        wait_lag=wait_lag,
        part_start=front(graph.part_start, 0),
        memory_start=front(graph.memory_start, 0),
    )


def _with(table: tuple[T, ...], value: T) -> tuple[tuple[T, ...], int]:
    """The table with the value in it, and its row."""
    return (table, table.index(value)) if value in table else ((*table, value), len(table))


def ops_of(timeline: Timeline, rank: int) -> Rows:
    """The GPU ops of a rank, in the graph's order: the same ones in every replay of a recording."""
    graph = timeline.graph
    return np.flatnonzero((graph.rank == rank) & ~_is_host(graph))
