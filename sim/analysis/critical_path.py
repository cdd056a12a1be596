"""The critical path: the chain of ops, each started by the one before, that makes the step so long.

An op starts at the very moment at which its last need is met, and a collective moves data once its
last member has come. So the path is found by walking back from the op that ends last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.analysis.relations import binding, rendezvous
from sim.timeline import Timeline, dimension, kind


@dataclass(frozen=True)
class CriticalPath:
    """The ops on the critical path, first to last, and the seconds that each category has on it."""

    ops: tuple[int, ...]
    """The ops; for a collective, the member that came last stands for all."""
    seconds: dict[str, float]
    """Seconds by kind of kernel (gemm, attention, ...), dimension, copy, and "gap" for
    lags and for what came before the first op; the sum is the timeline's duration."""
    took: tuple[float, ...] = ()
    """Seconds of each of the ops on it."""


def critical_path(timeline: Timeline) -> CriticalPath:
    """Find the chain of ops that makes the step as long as it is, and what its seconds are.

    The walk back begins at the op that ends last; of several at that instant, at the lowest one.
    """
    if not len(timeline.graph):
        return CriticalPath((), {})
    graph = timeline.graph
    op, ends, before = np.array([*walk(timeline)], np.int64)[::-1].T
    took = timeline.end[ends] - timeline.start[op]
    ready = np.where(before >= 0, timeline.end[before], timeline.span[0])
    gaps = timeline.start[op] - ready
    label = [dimension(work) or kind(work) for work in graph.works]
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for work in np.unique(graph.work[op]).tolist():
        rows[label[work]].append(work)
    each = {name: took[np.isin(graph.work[op], works)] for name, works in rows.items()}
    if gaps.any():
        each["gap"] = np.append(each.get("gap", []), gaps)
    seconds = {name: math.fsum(parts.tolist()) for name, parts in each.items()}
    return CriticalPath(
        tuple(op.tolist()),
        dict(sorted(seconds.items(), key=lambda item: (-item[1], item[0]))),
        tuple(took.tolist()),
    )


def walk(timeline: Timeline, last: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Yield the ops of a chain, last to first, each with what ends it and what came before it.

    That is (op, the member whose end lets the path go on, the op before or -1). For a collective,
    ``op`` is the member that came last. The walk begins at ``last``, by default the op that ends
    last. Times that contradict the graph, which clocks that are not aligned can record, may lead in
    a circle; the walk ends before it closes one.
    """
    if not len(timeline.graph):
        return
    needs, arrival = binding(timeline), rendezvous(timeline)[0]
    i = int(np.argmax(timeline.end)) if last is None else last
    seen = bytearray(len(needs))
    while i >= 0:
        came = arrival.item(i)
        seen[came] = 1
        before = needs.item(came)
        if before >= 0 and seen[arrival.item(before)]:
            before = -1
        yield came, i, before
        i = before
