"""Infers waits between streams from ends that meet starts, if a file shows no event calls.

An op may have waited for an op on another stream if it starts as that one ends, and later than all
its known needs have ended. Such a pair counts if it follows a rule of the program: on no rank does
any pair of these two names, launched that many ops apart, start before the other has ended. Then
all pairs of the rule wait, even where the wait is met early and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.analysis.activity import HOST, activities, by_rank
from sim.graph import Bools, Graph, Longs, offsets, owners
from sim.timeline import Timeline
from traces.kineto import names
from traces.kineto.linked import Linked
from traces.replay.lags import exact, last_need

TICK = 1.001e-6
"""An op may start so many seconds before what it waits for ends: clocks count whole us."""
LATE = 4e-6
"""Seconds within which an op that waited starts; usually 1.5 to 2 us after NCCL's end."""
LAUNCH = 10e-6
"""Seconds within which a launched op starts if nothing else holds it up."""
SAID = (
    "the files have no event calls (cudaEventRecord, cudaStreamWaitEvent): waits between streams "
    "are inferred from ends that meet starts"
)

Rule = tuple[int, int, int]  # name of the op that waits, name of the other, launches between them


def lack(ranks: Sequence[Linked]) -> bool:
    """Return whether no file shows a wait between streams, though some rank has several streams."""
    if not ranks or any(one.cpu_only for one in ranks):
        return False
    for one in ranks:
        called = {call.correlation for call in one.trace.calls}
        if any(
            sync.kind == "Stream Wait Event" and sync.on_call in called for sync in one.trace.syncs
        ):
            return False
        if any(names.WAITS.match(call.name) for call in one.trace.calls):
            return False
    return any(len({(op.device, op.stream) for op in one.trace.gpu}) > 1 for one in ranks)


def inferred(timeline: Timeline) -> Timeline:
    """Return the timeline with waits between streams, and lags so that a simulation repeats it."""
    graph = timeline.graph
    kinds = activities(graph)
    gpu = kinds.code != kinds.names.index(HOST)
    order = [_launched(timeline, ops[gpu[ops]], gpu) for _, ops in by_rank(graph)]
    rules = {rule for ops in order for rule in _witnesses(timeline, ops, gpu)}
    later, earlier = _pairs(timeline, order, sorted(rules))
    return exact(replace(timeline, graph=with_waits(graph, later, earlier)))


def _launched(timeline: Timeline, ops: Longs, gpu: Bools) -> Longs:
    """Return the ops of a rank's GPU in the order in which they were launched."""
    graph = timeline.graph
    owner = owners(graph.wait_start)
    rows = np.flatnonzero(~gpu[graph.wait_on] & gpu[owner])
    launch = np.full(len(graph), -1, np.int64)
    launch[owner[rows]] = graph.wait_on[rows]
    mine = launch[ops]
    at = np.where(mine >= 0, timeline.start[mine], timeline.start[ops])
    return ops[np.lexsort((ops, mine, at))]


def _witnesses(timeline: Timeline, ops: Longs, gpu: Bools) -> set[Rule]:
    """Return the rules that ops of a rank may show: a start meets an end on another stream."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    last, since = last_need(timeline)
    launched = (
        (last >= 0) & ~gpu[graph.wait_on[np.maximum(last, 0)]]
        if len(graph.wait_on)
        else (np.zeros(len(graph), np.bool_))
    )
    slack = start - since - np.where(launched, LAUNCH, 0.0)
    place = np.empty(len(graph), np.int64)
    place[ops] = np.arange(len(ops))
    by_end = ops[np.argsort(end[ops], kind="stable")]
    ends = end[by_end]
    out: set[Rule] = set()
    for i in ops[slack[ops] > TICK].tolist():
        low, high = np.searchsorted(ends, [start[i] - LATE, start[i] + TICK], "right")
        for j in by_end[low:high].tolist():
            if graph.stream[j] != graph.stream[i] and place[j] < place[i]:
                out.add((int(graph.name[i]), int(graph.name[j]), int(place[i] - place[j])))
    return out


def _pairs(
    timeline: Timeline, order: Sequence[Longs], rules: Sequence[Rule]
) -> tuple[Longs, Longs]:
    """Return all pairs (later, earlier) of the rules that no pair breaks."""
    graph = timeline.graph
    found: list[tuple[Longs, Longs]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    called = [graph.name[ops] for ops in order]
    for waits, on, between in rules:
        pairs = []
        for ops, name in zip(order, called, strict=True):
            if between < len(ops):
                there = np.flatnonzero((name[between:] == waits) & (name[:-between] == on))
                pairs.append((ops[there + between], ops[there]))
        later, earlier = (np.concatenate(of) for of in zip(*pairs, strict=True))
        apart = graph.stream[later] != graph.stream[earlier]
        late = timeline.end[earlier] > timeline.start[later] + TICK
        if apart.all() and not late.any():
            found.append((later, earlier))
    later, earlier = (np.concatenate(of) for of in zip(*found, strict=True))
    return later, earlier


def with_waits(graph: Graph, later: Longs, earlier: Longs) -> Graph:
    """Return the graph with more waits, after those that ops already have."""
    owner = np.concatenate([owners(graph.wait_start), later])
    order = np.argsort(owner, kind="stable")
    on = np.concatenate([graph.wait_on.astype(np.int64), earlier])[order]
    lag = np.append(graph.wait_lag, np.zeros(len(later)))[order]
    counts = np.bincount(owner, minlength=len(graph))
    return replace(graph, wait_start=offsets(counts), wait_on=on.astype(np.int32), wait_lag=lag)
