"""Where replicas meet in a step, and how one of them is made to come later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.analysis.critical_path import walk
from sim.analysis.relations import previous
from sim.graph import Communication, Graph, Longs, owners
from sim.timeline import Timeline


def held(timeline: Timeline, replica: Longs, later: float) -> Graph:
    """Return the graph whose step takes so many seconds more.

    A replica that stands for others comes that much behind the last one to the meeting on the
    critical path that waits longest, or to the end of the step if there is none. ``replica`` has
    that of each rank of the job.
    """
    graph, start, end = timeline.graph, timeline.start, timeline.end
    many = [rank for rank, count in graph.stands_for.items() if count > 1]
    mine = np.flatnonzero(np.isin(replica[graph.rank], replica[many]))
    op = int(mine[np.argmax(end[mine])])
    until = timeline.seconds - (end[op] - start[op])
    member, part = owners(graph.part_start), graph.part
    longest = 0.0
    for part_on_path in _met(timeline, replica):
        ops = member[part == part_on_path]
        here, wait = np.intersect1d(ops, mine), float(np.ptp(start[ops]))
        if len(here) and wait > longest:
            op, until, longest = int(here[0]), float(start[ops].max()), wait
    before, lag = int(previous(graph)[op]), np.array(graph.lag)
    lag[op] = until + later - (end[before] if before >= 0 else 0.0)
    return replace(graph, lag=lag)


def _met(timeline: Timeline, replica: Longs) -> Longs:
    """Return the parts on the critical path in which several replicas meet."""
    graph = timeline.graph
    groups = [w.ranks if isinstance(w, Communication) else () for w in graph.works]
    across = {ranks: len(np.unique(replica[list(ranks)])) > 1 for ranks in {*groups} - {()}}
    path = np.array([op for op, _, _ in walk(timeline)])
    on_path = np.isin(owners(graph.part_start), path)
    parts: Longs = np.unique(graph.part[on_path]).astype(np.int64)
    return parts[[across.get(groups[work], False) for work in graph.part_work[parts]]]
