"""Time that passes on the host between what an operation waits for and its start.

Recorded operations start later than what they need has ended: the host was busy, loading data or
launching. An anchored replay keeps such a gap as recorded. A modelled one takes the median of the
gaps between the same two types of operation on the same stage in other steps.

Not all of a gap is the host's: not the time in which the worker still runs something that the graph
does not name as a need. And where all workers start together after gaps of all lengths, they waited
for each other in something that was not recorded; then the last to come shows what the host took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.analysis.relations import previous
from sim.graph import Bools, Floats, Graph, Longs, owners
from sim.timeline import Timeline
from traces.recording import Recording

NOTHING = -1  # stands for what the first ops of a step wait for

CLOCK = 1e-6  # seconds: a start this close to an end comes after it

Gaps = Mapping[tuple[int, int, int], float]
"""Seconds by stage, type of the op waited for (a row of the graph's names, or NOTHING) and type."""


class Latest(NamedTuple):
    """What each op waited for last, within its step."""

    op: Longs  # NOTHING where it waits for nothing
    gap: Floats  # seconds from there, or from the step's beginning, to its start


def anchored(recording: Recording) -> Graph:
    """Return the graph with every gap as recorded, so that each step replays as it ran."""
    graph = recording.timeline.graph
    gap = latest(recording.timeline).gap
    return replace(graph, lag=gap, wait_lag=gap[owners(graph.wait_start)])


def modelled(recording: Recording) -> Graph:
    """Return the graph with gaps learnt from its other steps: even ones from odd ones, and so on.

    Raises InputError where there is only one step.
    """
    graph = recording.timeline.graph
    if not graph.step.any():
        raise InputError(
            "gaps of the host are learnt from other steps than the one that is replayed, but the "
            "recording has only one; read all steps, or take anchored or none"
        )
    odd = graph.step % 2 == 1
    sets = [learn(recording.timeline, ops) for ops in (odd, ~odd)]
    even, uneven = (with_gaps(graph, gaps) for gaps in sets)
    return replace(
        graph,
        lag=np.where(odd, uneven.lag, even.lag),
        wait_lag=np.where(odd[owners(graph.wait_start)], uneven.wait_lag, even.wait_lag),
    )


def learn(timeline: Timeline, ops: Bools) -> Gaps:
    """Return gaps by (stage, type before, type) among these ops: medians over steps.

    In a step, the gap is the shortest of the workers' medians.
    """
    graph, found = timeline.graph, latest(timeline)
    columns = {
        "stage": graph.stage,
        "before": np.where(found.op >= 0, graph.name[found.op], NOTHING),
        "name": graph.name,
        "step": graph.step,
        "rank": graph.rank,
        "gap": np.minimum(found.gap, idle(timeline)),
    }
    table = pd.DataFrame(columns)[ops]
    of_rank = table.groupby(["stage", "before", "name", "step", "rank"])["gap"].median()
    of_step = of_rank.groupby(["stage", "before", "name", "step"]).min()
    medians = of_step.groupby(["stage", "before", "name"]).median()
    return {key: float(gap) for key, gap in medians.items()}  # type: ignore[misc]


def with_gaps(graph: Graph, gaps: Gaps) -> Graph:
    """Return the graph with these gaps after everything that an op waits for."""
    before = np.full(len(graph), NOTHING)
    later, earlier = _stream_edges(graph)
    before[later] = graph.name[earlier]
    owner = owners(graph.wait_start)
    crosses = graph.step[owner] != graph.step[graph.wait_on]
    waited = np.where(crosses, NOTHING, graph.name[graph.wait_on])
    return replace(
        graph,
        lag=_lookup(gaps, graph.stage, before, graph.name),
        wait_lag=_lookup(gaps, graph.stage[owner], waited, graph.name[owner]),
    )


def latest(timeline: Timeline) -> Latest:
    """Return the op whose end each op waited for last, and the gap after it (never negative)."""
    graph, n = timeline.graph, len(timeline.graph)
    owner = owners(graph.wait_start)
    inside = graph.step[owner] == graph.step[graph.wait_on]
    on_stream = _stream_edges(graph)
    later = np.concatenate([owner[inside], on_stream[0]])
    earlier = np.concatenate([graph.wait_on[inside], on_stream[1]])
    order = np.lexsort((earlier, timeline.end[earlier], later))
    op = np.full(n, NOTHING, np.int64)
    op[later[order]] = earlier[order]  # the last one written has the latest end
    begins = np.full(int(graph.step.max(initial=0)) + 1, np.inf)
    np.minimum.at(begins, graph.step, timeline.start)
    ready = np.where(op >= 0, timeline.end[op], begins[graph.step])
    return Latest(op, np.maximum(timeline.start - ready, 0.0))


def idle(timeline: Timeline) -> Floats:
    """Return the seconds from the rank's latest end in the step to each op's start, (ops,).

    They are infinite where nothing has ended yet.
    """
    graph, n = timeline.graph, len(timeline.graph)
    group = graph.step.astype(np.int64) * (int(graph.rank.max(initial=0)) + 1) + graph.rank
    time = np.concatenate([timeline.end, timeline.start + CLOCK])
    starts = np.arange(2 * n) >= n
    order = np.lexsort((starts, time, np.tile(group, 2)))
    latest_end = np.maximum.accumulate(np.where(starts[order], -1, np.arange(2 * n)))
    row = np.empty(2 * n, np.int64)
    row[order] = latest_end
    ended = order[row[n:]]  # -1 reads the last row: an op of another group, or a start
    there = (row[n:] >= 0) & (ended < n)
    there &= group[np.where(there, ended, 0)] == group
    since = timeline.start - timeline.end[np.where(there, ended, 0)]
    return np.where(there, np.maximum(since, 0.0), np.inf)


def _stream_edges(graph: Graph) -> tuple[Longs, Longs]:
    """Return neighbours (later, earlier) on a stream that belong to one step."""
    before = previous(graph)
    later = np.flatnonzero((before >= 0) & (graph.step == graph.step[before]))
    return later, before[later]


def _lookup(
    gaps: Gaps, stage: NDArray[np.integer], before: NDArray[np.integer], name: NDArray[np.integer]
) -> Floats:
    """Return each row's gap; 0 for what was never the last thing waited for."""
    keys = np.stack([stage, before, name], axis=1).astype(np.int64).reshape(-1, 3)
    distinct, row = np.unique(keys, axis=0, return_inverse=True)
    known = [gaps.get((int(a), int(b), int(c)), 0.0) for a, b, c in distinct]
    return np.array(known, np.float64)[row.ravel()]
