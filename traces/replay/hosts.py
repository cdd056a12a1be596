"""Turns recorded runs into graphs to simulate again: with the host as it was, or as hosts behave.

All need only a recording's timeline, so they work for every format. Simulate them with
:func:`sim.engine.simulate` on :func:`sim.machine.hardware.ideal`: their works are ``Fixed``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.analysis.activity import HOST
from sim.analysis.relations import previous
from sim.graph import Bools, Fixed, Floats, Graph, Longs, offsets, owners
from sim.timeline import Timeline
from traces.recording import Recording
from traces.replay.lags import is_host, last_need, late, launched

T = TypeVar("T", bound=Hashable)
ENOUGH = 3  # the median of so many delays of one name on one stream is taken as usual
CLOCK = "clock"  # stream of an op of no length, from which recorded host times count


def recorded(recording: Recording) -> Graph:
    """Return the graph that repeats the recording exactly: every unexplained delay is a lag."""
    return recording.timeline.graph


def modelled(recording: Recording) -> Graph:
    """Return the graph in which the host follows its gaps, and the GPU what it waits for.

    Host ops follow the one before them after the recorded gap, or the GPU ops that they wait for.
    Ops of the GPU start a typical delay after what they waited for last: the median for their rank,
    kind of need (stream order, launch, another stream), stream and name. A need that was not the
    last delays an op no longer than recorded. Late starts (:func:`~traces.replay.lags.late`) keep
    their own delay, and so do ops without a launch in the file.
    """
    timeline = recording.timeline
    return _delayed(timeline, is_host(timeline.graph), kept=False)


def anchored(recording: Recording) -> Graph:
    """Return the graph in which host ops begin when they did, if their threads are free then.

    Every delay is the recorded one.
    """
    timeline = recording.timeline
    host = is_host(timeline.graph)
    graph = _delayed(timeline, host, kept=True)
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


def _delayed(timeline: Timeline, host: Bools, kept: bool) -> Graph:
    """Replace the lags of GPU ops that the host launched by typical ones.

    Late ops keep their own lag; if ``kept``, all ops keep that of what they waited for last.
    """
    graph, start, end = timeline.graph, timeline.start, timeline.end
    later = owners(graph.wait_start)
    some = launched(graph, host)
    before = previous(graph)
    last, _ = last_need(timeline)
    own = late(timeline)

    in_order = np.flatnonzero(some & (before >= 0))
    lag = graph.lag.copy()
    lag[some] = 0.0
    lag[in_order] = _typical(
        _alike(graph, in_order, np.zeros(len(in_order), np.bool_)),
        start[in_order] - end[before[in_order]],
        last[in_order] < 0,
        own[in_order],
        kept,
    )

    rows = np.flatnonzero(some[later])
    wait_lag = graph.wait_lag.copy()
    wait_lag[rows] = _typical(
        _alike(graph, later[rows], host[graph.wait_on[rows]]),
        start[later[rows]] - end[graph.wait_on[rows]],
        last[later[rows]] == rows,
        own[later[rows]],
        kept,
    )
    return replace(graph, lag=lag, wait_lag=wait_lag)


class _Alike(NamedTuple):
    """Numbers that group needs: equal numbers mean needs that are alike."""

    sort: Longs  # its rank, and whether on stream order, a launch or an op of another stream
    close: Longs  # that, and its stream and name


def _alike(graph: Graph, ops: Longs, on_host: Bools) -> _Alike:
    columns = [*(of[ops] for of in (graph.rank, graph.stream, graph.name)), on_host]
    table = np.stack(columns, axis=1).astype(np.int64).reshape(-1, 4)
    numbers = (np.unique(of, axis=0, return_inverse=True)[1] for of in (table[:, ::3], table))
    return _Alike(*(np.asarray(of.ravel()) for of in numbers))


def _typical(alike: _Alike, slack: Floats, decided: Bools, own: Bools, kept: bool) -> Floats:
    """Return each need's delay: its own, or the median of needs alike that decided a start.

    Close ones count as alike if there are enough of them; those that keep their own do not. A need
    that did not decide the start was met early enough: its delay is at most its slack.
    """
    deciding = pd.Series(slack).where(decided & ~own)
    sort, close = (deciding.groupby(of) for of in alike)
    few = close.transform("count") < ENOUGH
    typical = close.transform("median").mask(few, sort.transform("median")).fillna(0.0).to_numpy()
    out = np.where(decided, np.where(own | kept, slack, typical), np.minimum(typical, slack))
    return np.clip(out, 0.0, None)


def _from_clock(graph: Graph, host: Bools, start: Floats) -> Graph:
    """Add an op of no length in front; every host op waits for it as long as was recorded."""
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
    """Return the table with the value in it, and its row."""
    return (table, table.index(value)) if value in table else ((*table, value), len(table))


def ops_of(timeline: Timeline, rank: int) -> Longs:
    """Return the GPU ops of a rank, in the graph's order, which every replay keeps."""
    graph = timeline.graph
    return np.flatnonzero((graph.rank == rank) & ~is_host(graph))
