"""The memory that each rank holds over time, and what fills it at the peak.

At any instant, frees count before allocations, because an allocator reuses the same blocks. Ops
that take no time free and allocate one after the other, in the order of issue. Memory that stays
for the whole step (``graph.persistent``) is the base.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats, Longs, owners
from sim.timeline import Timeline


class Curve(NamedTuple):
    """The bytes that one rank holds from each instant to the next; the last is the step's end."""

    seconds: Floats
    bytes: Floats

    def with_more(self, more: float) -> Curve:
        """Return the curve with ``more`` bytes at every instant, such as CUDA's context."""
        return Curve(self.seconds, self.bytes + more)


@dataclass(frozen=True)
class Peak:
    """The most bytes that a rank holds at once."""

    rank: int
    stands_for: int  # ranks of the job that need as much
    peak_bytes: float
    seconds: float  # when, the first time
    by_category: dict[str, float]  # bytes at that time


class Changes(NamedTuple):
    """The allocations and frees of a rank, in order of time."""

    seconds: Floats
    bytes: Floats
    category: NDArray[np.int8]
    op: Longs  # whose they are


def peaks(timeline: Timeline) -> list[Peak]:
    """Return the memory peak of every simulated rank, by rank."""
    return [_peak(timeline, rank, rows) for rank, rows in changes(timeline)]


def curves(timeline: Timeline) -> dict[int, Curve]:
    """Return the bytes that every simulated rank holds over time, a row for each change.

    Every curve spans the whole step: its first row is the first start, its last row the last end.
    """
    return {rank: _curve(timeline, rank, rows) for rank, rows in changes(timeline)}


def _curve(timeline: Timeline, rank: int, rows: Changes) -> Curve:
    base = fsum(timeline.graph.persistent.get(rank, {}).values())
    zero, last = timeline.span
    seconds = np.concatenate([[zero], rows.seconds, [last]])
    sums = np.cumsum(rows.bytes)
    held = base + np.concatenate([[0.0], sums, sums[-1:] if len(sums) else [0.0]])
    final = np.append(seconds[1:] != seconds[:-1], True)  # the last change of each instant
    return Curve(seconds[final], held[final])


def _peak(timeline: Timeline, rank: int, rows: Changes) -> Peak:
    graph = timeline.graph
    held = np.append(0.0, np.cumsum(rows.bytes))
    k = int(np.argmax(held))
    by_category = dict(graph.persistent.get(rank, {}))
    now = np.bincount(rows.category[:k], rows.bytes[:k], len(graph.categories))
    for name, size in zip(graph.categories, now.tolist(), strict=True):
        if size:
            by_category[name] = by_category.get(name, 0.0) + size
    return Peak(
        rank=rank,
        stands_for=graph.stands_for.get(rank, 1),
        peak_bytes=float(held[k]) + fsum(graph.persistent.get(rank, {}).values()),
        seconds=float(rows.seconds[k - 1] if k else timeline.span[0]),
        by_category=by_category,
    )


def changes(timeline: Timeline) -> Iterator[tuple[int, Changes]]:
    """Yield every simulated rank, ascending, with its allocations and frees."""
    graph = timeline.graph
    op = owners(graph.memory_start)
    seconds = np.where(graph.memory_at_end, timeline.end[op], timeline.start[op])
    rank, takes = graph.rank[op], graph.memory_bytes > 0
    later = takes | (timeline.start[op] == timeline.end[op])
    order = np.lexsort((takes, graph.memory_at_end, op, later, seconds, rank))
    ranks = graph.ranks()
    bounds = np.searchsorted(rank[order], np.append(ranks, ranks[-1:] + 1))
    for k, one in enumerate(ranks.tolist()):
        of = order[bounds[k] : bounds[k + 1]]
        sizes, categories = graph.memory_bytes[of], graph.memory_category[of]
        yield one, Changes(seconds[of], sizes, categories, op[of])
