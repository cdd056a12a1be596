"""A helper of analyses: the op that made another start, and the last member of a collective."""

from __future__ import annotations

import numpy as np

from sim.analysis.remembered import remembered
from sim.graph import Floats, Graph, Ints, Longs
from sim.timeline import Timeline


def previous(graph: Graph) -> Longs:
    """Return the op just before each one on its stream, -1 for the first."""
    order, begins = graph.stream_order()
    before = np.full(len(graph), -1, np.int64)
    before[order[1:]] = order[:-1]
    before[order[begins[:-1]]] = -1
    return before


@remembered
def binding(timeline: Timeline) -> Longs:
    """Return per op the need that was met last: the op before on its stream, or a wait; else -1.

    An op starts at the very moment at which its last need is met, lags included. Of several needs
    met at one instant, the lowest op counts. The first op of a stream may also lag behind the zero
    of the timeline, which is not an op.
    """
    graph, end = timeline.graph, timeline.end
    best = previous(graph)
    ready = np.where(best >= 0, end[best], 0.0) + graph.lag
    counts = np.diff(graph.wait_start)
    rows = np.flatnonzero(counts)
    if len(rows):
        met = end[graph.wait_on] + graph.wait_lag
        latest, who = _last(met, graph.wait_on, graph.wait_start[rows], counts[rows])
        ties = (latest == ready[rows]) & ((who < best[rows]) | (best[rows] < 0))
        later = (latest > ready[rows]) | ties
        best[rows[later]] = who[later]
    best.flags.writeable = False
    return best


@remembered
def rendezvous(timeline: Timeline) -> tuple[Longs, Floats]:
    """Return the op that came last to each op's rendezvous, and when its data begins to move.

    Both have one value per op; times are in seconds. For an op outside of any part they are the op
    itself and its start. If an op has several parts, the part that ended last decides which op came
    last, and data moves as soon as the first of the parts moves it.
    """
    graph, start, end = timeline.graph, timeline.start, timeline.end
    arrival, moves = np.arange(len(graph)), start.copy()
    counts = np.diff(graph.part_start)
    rows = np.flatnonzero(counts)
    if not len(rows):
        return _fixed(arrival, moves)
    part, member = graph.part, np.repeat(arrival, counts)
    begin, last = _last_to_come(graph, member, start)
    ended = np.full(len(graph.part_work), np.inf)
    np.minimum.at(ended, part, end[member] - graph.part_tail)
    first = graph.part_start[rows]
    _, decisive = _last(ended[part] + graph.part_tail, part, first, counts[rows])
    arrival[rows] = last[decisive]
    moves[rows] = np.clip(np.minimum.reduceat(begin[part], first), start[rows], end[rows])
    return _fixed(arrival, moves)


def _fixed(arrival: Longs, moves: Floats) -> tuple[Longs, Floats]:
    arrival.flags.writeable = moves.flags.writeable = False
    return arrival, moves


def needed(timeline: Timeline, needs: Longs, arrival: Longs, ops: Longs) -> Longs:
    """Return the op that each of ``ops`` waited for last (of another rank if any did), or -1.

    ``needs`` and ``arrival`` are those of :func:`binding` and :func:`rendezvous`. The search for
    another rank goes back over needs that take no time, such as transfers on an ideal network.
    """
    rank, start, end = timeline.graph.rank, timeline.start, timeline.end
    out = np.where(ops >= 0, needs[ops], -1)
    open_, at = np.flatnonzero(ops >= 0), ops.copy()
    for _ in range(len(needs)):
        need = needs[at[open_]]
        open_, need = open_[need >= 0], need[need >= 0]
        if not len(open_):
            break
        came, home = arrival[need], rank[ops[open_]]
        own = rank[need] == home
        lags = own & (start[at[open_]] > end[need])
        source = np.where(own, came, need)
        abroad = ~lags & (rank[source] != home)
        out[open_[abroad]] = source[abroad]
        further = ~abroad & ~lags & (start[came] == end[need])
        open_ = open_[further]
        at[open_] = came[further]
    return out


def _last_to_come(graph: Graph, member: Longs, start: Floats) -> tuple[Floats, Longs]:
    """Return per part when its last member started, and the lowest op that started then."""
    begin = np.full(len(graph.part_work), -np.inf)
    np.maximum.at(begin, graph.part, start[member])
    last = np.full(len(begin), len(graph), np.int64)
    latest = start[member] == begin[graph.part]
    np.minimum.at(last, graph.part[latest], member[latest])
    return begin, last


def _last(when: Floats, who: Ints, first: Ints, counts: Ints) -> tuple[Floats, Longs]:
    """Return per non-empty CSR row its latest instant, and the lowest ``who`` at that instant."""
    latest = np.maximum.reduceat(when, first)
    none = np.iinfo(np.int64).max
    candidates = np.where(when == np.repeat(latest, counts), who.astype(np.int64), none)
    return latest, np.minimum.reduceat(candidates, first)
