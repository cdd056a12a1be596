"""Where each rank's time goes: computing, exposed and hidden communication, nothing.

For every rank, compute + the exposed seconds of all dimensions + empty = the step. So each instant
counts once: for the dimension whose data moves (of several, the one that began to move first), and
if no data moves, for the dimension that has waited longest. The time in which a collective waits
for its last rank is part of its communication time, as in a profiler, and is also given by itself.

The hidden seconds of a dimension are those of its moving data beside a kernel of the rank. What
moves without a kernel while another dimension counts is neither exposed nor hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from sim.analysis.activity import COMPUTE, HOST, Activities, activities, by_rank
from sim.analysis.intervals import Intervals, complement, first_come, union, within
from sim.analysis.relations import rendezvous
from sim.analysis.weights import weights
from sim.graph import Floats, Ints, Longs
from sim.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Breakdown:
    """Seconds by what a rank does, one row per simulated rank; mappings are by dimension."""

    step: float  # first start to last end of the whole timeline
    ranks: Ints
    stands_for: Floats  # ranks of the job that each row stands for
    span: Floats  # the rank's own first start to its last end
    compute: Floats  # at least one compute kernel runs
    communication: Floats  # at least one communication or copy runs
    overlapped: Floats  # both
    empty: Floats  # neither
    total: Mapping[str, Floats]  # at least one op of the dimension runs
    moving: Mapping[str, Floats]  # data of at least one op moves
    hidden: Mapping[str, Floats]  # of moving: a compute kernel runs
    exposed: Mapping[str, Floats]  # no compute runs; see above for several dimensions at once
    waiting: Mapping[str, Floats]  # at least one op has started and a peer of it has not
    exposed_waiting: Mapping[str, Floats]  # of exposed: no data moves, an op waits for its peers

    def hidden_share(self, dimension: str) -> float:
        """Return the hidden share of the seconds in which data moves: one if none does."""
        moving = self.mean(self.moving[dimension])
        return self.mean(self.hidden[dimension]) / moving if moving > 0 else 1.0

    def mean(self, column: Floats) -> float:
        """Return the mean over all ranks of the job, including those that are folded away."""
        return float(np.average(column, weights=self.stands_for)) if len(column) else 0.0


class Spread(TypedDict):
    """The spread of a figure over the ranks of the job, in seconds."""

    mean: float
    max: float


def breakdown(timeline: Timeline) -> Breakdown:
    """Split each rank's step into computing, exposed communication by dimension, and nothing."""
    kinds = activities(timeline.graph)
    _, moves = rendezvous(timeline)
    rows = [_rank(timeline, kinds, moves, ops) for _, ops in by_rank(timeline.graph)]
    ranks = timeline.graph.ranks()

    def column(key: str) -> Floats:
        return np.array([row[key] for row in rows], np.float64)

    def columns(prefix: str) -> dict[str, Floats]:
        return {name: column(f"{prefix} {name}") for name in kinds.names[2:]}

    return Breakdown(
        step=timeline.seconds,
        ranks=ranks,
        stands_for=weights(timeline.graph, ranks),
        span=column("span"),
        compute=column("compute"),
        communication=column("communication"),
        overlapped=column("overlapped"),
        empty=column("empty"),
        total=columns("total"),
        moving=columns("moving"),
        hidden=columns("hidden"),
        exposed=columns("exposed"),
        waiting=columns("waiting"),
        exposed_waiting=columns("exposed_waiting"),
    )


def summary(of: Breakdown) -> dict[str, Spread | dict[str, Spread]]:
    """Return the mean and maximum over ranks of each figure, in seconds, for ``summary.json``."""

    def spread(column: Floats) -> Spread:
        return {"mean": of.mean(column), "max": float(column.max(initial=0.0))}

    def spreads(columns: Mapping[str, Floats]) -> dict[str, Spread]:
        return {name: spread(column) for name, column in columns.items()}

    return {
        "compute": spread(of.compute),
        "exposed": spreads(of.exposed),
        "hidden": spreads(of.hidden),
        "waiting": spreads(of.waiting),
        "exposed_waiting": spreads(of.exposed_waiting),
        "empty": spread(of.empty),
    }


def _rank(timeline: Timeline, kinds: Activities, moves: Floats, ops: Longs) -> dict[str, float]:
    on_gpu = ops[kinds.code[ops] != kinds.names.index(HOST)]
    start, end, code = timeline.start[on_gpu], timeline.end[on_gpu], kinds.code[on_gpu]
    computes = code == kinds.names.index(COMPUTE)
    compute = union(start[computes], end[computes])
    transfers = ~computes
    start, end, code = start[transfers], end[transfers], code[transfers]
    moving = moves[on_gpu][transfers]
    communicates, moved = union(start, end), union(moving, end)
    busy = union(*_both(compute, communicates))
    row = {
        "span": float(busy.end[-1] - busy.start[0]) if len(busy.start) else 0.0,
        "compute": compute.seconds(),
        "communication": communicates.seconds(),
        "overlapped": float(within(communicates, compute).sum()),
        "empty": complement(busy, *timeline.span).seconds(),
    }
    sizes = len(kinds.names)
    exposed = _first(moving, end, code, compute, sizes)
    waits = _first(start, moving, code, union(*_both(compute, moved)), sizes)
    for k, name in enumerate(kinds.names[2:], 2):
        mine = code == k
        data = union(moving[mine], end[mine])
        row[f"moving {name}"] = data.seconds()
        row[f"hidden {name}"] = max(float(within(data, compute).sum()), 0.0)  # but for rounding
        row[f"total {name}"] = union(start[mine], end[mine]).seconds()
        row[f"exposed {name}"] = float(exposed[k] + waits[k])
        row[f"exposed_waiting {name}"] = float(waits[k])
        row[f"waiting {name}"] = union(start[mine], moving[mine]).seconds()
    return row


def _first(start: Floats, end: Floats, code: Longs, behind: Intervals, sizes: int) -> Floats:
    """Return the seconds by code outside of ``behind``; each instant counts for the first to begin.

    ``start``, ``end`` and ``code`` have one row per interval; the result has ``sizes`` values.
    """
    owner, pieces = first_come(start, end)
    bare = np.maximum(pieces.end - pieces.start - within(pieces, behind), 0.0)  # but for rounding
    return np.bincount(code[owner], bare, sizes).astype(np.float64)


def _both(one: Intervals, two: Intervals) -> tuple[Floats, Floats]:
    return np.append(one.start, two.start), np.append(one.end, two.end)
