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

from sim.analysis.relations import binding, rendezvous
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
    """Find the chain of ops that makes the step as long as it is, and what its seconds are.

    The walk back begins at the op that ends last; of equals, at the lowest op.
    """
    if not len(timeline.graph):
        return CriticalPath((), {})
    graph = timeline.graph
    label = [dimension(work) or kind(work) for work in graph.works]
    shares: defaultdict[str, list[float]] = defaultdict(list)
    path = []
    start, end, zero = timeline.start, timeline.end, float(timeline.start.min())
    for op, ends, before in walk(timeline):
        path.append(op)
        shares[label[graph.work[op]]].append(float(end[ends]) - float(start[op]))
        gap = float(start[op]) - (float(end[before]) if before >= 0 else zero)
        if gap:
            shares["gap"].append(gap)
    seconds = {name: math.fsum(parts) for name, parts in shares.items()}
    return CriticalPath(
        tuple(reversed(path)), dict(sorted(seconds.items(), key=lambda item: (-item[1], item[0])))
    )


def walk(timeline: Timeline, last: int | None = None) -> Iterator[tuple[int, int, int]]:
    """(op, the member whose end lets the path go on, the op before it or -1), last to first.

    Of a collective, ``op`` is the member that came last. It begins at ``last``, which is the op
    that ends last unless given. Times that contradict the graph, as clocks
    that are not aligned can record, may lead in a circle; the walk ends where it would close.
    """
    if not len(timeline.graph):
        return
    needs, arrival = binding(timeline).tolist(), rendezvous(timeline)[0].tolist()
    i = int(np.argmax(timeline.end)) if last is None else last
    seen = bytearray(len(needs))
    while i >= 0:
        came = arrival[i]
        seen[came] = 1
        before = needs[came]
        if before >= 0 and seen[arrival[before]]:
            before = -1
        yield came, i, before
        i = before
