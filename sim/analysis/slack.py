"""How much later each op could run without moving the end of the step: its total slack.

Durations, lags and tails stay as the timeline shows them, and with them how ops share links and
GPUs. So this is the backward pass of the critical path method over stream order, waits and parts.
In terms of gaps it is a shortest path: for an edge u -> v, the gap is how much later v happens than
u alone would make it happen. The slack of u is the least sum of gaps on any way from u to the end.
If something happens later than all its needs explain, that delay counts as a lag behind the last of
them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.analysis.relations import previous
from sim.graph import Fixed, Floats, Longs, owners
from sim.late import pd, sparse
from sim.timeline import Timeline


class Slack(NamedTuple):
    """The slack of every op, one row per op."""

    seconds: Floats
    """How much later the op may start while the timeline still ends when it does, in seconds."""
    ends: Longs
    """On the way to the end with the least gaps: the op that ends first, itself or a peer."""
    behind: Longs
    """The op that starts because of that end; -1 where it is the end of the timeline."""

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per op: op, seconds, ends, behind."""
        return pd.DataFrame({"op": np.arange(len(self.seconds)), **self._asdict()})


class _Edges(NamedTuple):
    """Edges of one kind: from which node to which, and the gap between them in seconds."""

    source: Longs
    target: Longs
    gap: Floats


def slack(timeline: Timeline) -> Slack:
    """Say how much later each op could run without moving the end of the step.

    If several parts of an op seem to end at the same instant, all of them count as what ends it,
    unless their work is ``Fixed``; the slack is then a lower bound. Needs 200 bytes per op.
    """
    graph, n = timeline.graph, len(timeline.graph)
    if not n:
        return Slack(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
    member = np.flatnonzero(np.diff(graph.part_start))
    end_node = np.arange(n)
    end_node[member] = n + np.arange(len(member))  # otherwise an op is one node: start and end
    first_part = n + len(member)
    sink = first_part + len(graph.part_work)
    edges = _needs(timeline, end_node), *_parts(timeline, end_node, first_part)
    ends = _Edges(end_node, np.full(n, sink), timeline.end.max() - timeline.end)
    source, target, gap = (np.concatenate(column) for column in zip(*edges, ends, strict=True))
    order = np.argsort(target, kind="stable")
    into = np.append(0, np.cumsum(np.bincount(target, minlength=sink + 1)))
    reverse = sparse.csr_array(
        (np.maximum(gap[order], 0.0), source[order], into), shape=(sink + 1, sink + 1)
    )
    seconds, towards = sparse.csgraph.dijkstra(reverse, indices=sink, return_predecessors=True)
    return Slack(seconds[:n], *_follow(towards.astype(np.int64), n, member, sink))


def _needs(timeline: Timeline, end_node: Longs) -> _Edges:
    """Return the edges from the ends of the ops that an op waits for to its start."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    before = previous(graph)
    later = np.flatnonzero(before >= 0)
    target = np.append(later, owners(graph.wait_start))
    source = np.append(before[later], graph.wait_on)
    lag = np.append(graph.lag[later], graph.wait_lag)
    zero = np.where(before < 0, start - graph.lag, np.inf)  # the first of a stream lags behind 0 s
    gap = _explained(target, start[target] - end[source] - lag, zero)
    return _Edges(end_node[source], target, gap)


def _parts(timeline: Timeline, end_node: Longs, first_part: int) -> tuple[_Edges, _Edges]:
    """Return the edges from members' starts to their part, and from the part to their ends."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    op, part = owners(graph.part_start), graph.part
    begin, ended = part_times(timeline)
    node = first_part + part.astype(np.int64)
    gap = _explained(op, end[op] - graph.part_tail - ended[part], np.full(len(graph), np.inf))
    return _Edges(op, node, begin[part] - start[op]), _Edges(node, end_node[op], gap)


def part_times(timeline: Timeline) -> tuple[Floats, Floats]:
    """Return per part when its last member starts, and when the part ends without tails (seconds).

    A part ends with the first of its members; if its duration is known, no later than that allows.
    """
    graph = timeline.graph
    op = owners(graph.part_start)
    begin = np.full(len(graph.part_work), -np.inf)
    ended = np.full(len(graph.part_work), np.inf)
    np.maximum.at(begin, graph.part, timeline.start[op])
    np.minimum.at(ended, graph.part, timeline.end[op] - graph.part_tail)
    known = np.array([w.seconds if isinstance(w, Fixed) else np.inf for w in graph.works])
    return begin, np.minimum(ended, begin + known[graph.part_work])


def _explained(target: Longs, gap: Floats, least: Floats) -> Floats:
    """Return the gaps less the least gap of their target, which no need explains."""
    np.minimum.at(least, target, gap)
    return gap - least[target]


def _follow(towards: Longs, n: int, member: Longs, sink: int) -> tuple[Longs, Longs]:
    """Return per op, on its tightest way to the end, the op that ends next and the op behind it."""
    ends = np.arange(n)
    behind = towards[:n].copy()
    node = towards[towards[member]]  # a start, its part, the end of a member of the part
    ends[member], behind[member] = member[node - n], towards[node]
    behind[behind == sink] = -1
    return ends, behind
