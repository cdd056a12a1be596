"""What the step's duration is made of: the chain of ops, each started by the one before it.

An op starts at the very moment the last of its needs is met, and a collective gets on when the last
of its members has come; so the path is found by walking back from the op that ends last.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.analysis.relations import binding, meetings
from sim.timeline import Timeline, dimension, kind


@dataclass(frozen=True)
class CriticalPath:
    """The ops on the path, first to last, and the seconds that each category has on it."""

    ops: tuple[int, ...]
    """Of a collective, the member that came last stands for all."""
    seconds: dict[str, float]
    """By kind of kernel (gemm, attention, ...), dimension of communication, copy, and "gap" for
    lags and for what came before the first op; the sum is the timeline's duration."""


def critical_path(timeline: Timeline) -> CriticalPath:
    """Walk back from the op that ends last; of equals, the lowest op."""
    if not len(timeline.graph):
        return CriticalPath((), {})
    graph = timeline.graph
    label = [dimension(work) or kind(work) for work in graph.works]
    shares: defaultdict[str, list[float]] = defaultdict(list)
    path = []
    for op, begins, ends, gap in _walk(timeline):
        path.append(op)
        shares[label[graph.work[op]]].append(ends - begins)
        if gap:
            shares["gap"].append(gap)
    seconds = {name: math.fsum(parts) for name, parts in shares.items()}
    return CriticalPath(
        tuple(reversed(path)), dict(sorted(seconds.items(), key=lambda item: (-item[1], item[0])))
    )


def _walk(timeline: Timeline) -> Iterator[tuple[int, float, float, float]]:
    """(op, its begin, its end, gap before it) from the last to the first."""
    start, end = timeline.start, timeline.end
    needs = binding(timeline)
    arrival, _ = meetings(timeline)
    zero = float(start.min())
    i = int(np.argmax(end))
    while i >= 0:
        came = int(arrival[i])
        before = int(needs[came])
        ready = float(end[before]) if before >= 0 else zero
        yield came, float(start[came]), float(end[i]), float(start[came]) - ready
        i = before
