"""What the GPU of each rank does between its first op and its last, in shares of that time.

The three shares sum to one, as HolisticTraceAnalysis counts them: nothing runs, a kernel computes,
or only communication and copies run. Work of the host and time before the first op do not count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.analysis.activity import COMPUTE, COPY, HOST, activities, by_rank
from sim.analysis.intervals import union, within
from sim.timeline import Timeline


class Shares(NamedTuple):
    """The shares of one rank."""

    rank: int
    span_s: float  # first start to last end on its GPU
    empty_share: float  # nothing runs
    compute_share: float  # a compute kernel runs
    communication_share: float  # communication or a copy runs, and no compute kernel
    overlap_share: float  # of the time in which communication (no copy) runs: a kernel computes


def shares(timeline: Timeline, among: NDArray[np.bool_] | None = None) -> list[Shares]:
    """Say which share of its time each GPU computes, only communicates, and does nothing.

    One row per rank that has ops on its GPU, ascending. ``among``, if given, is a flag for each op
    of the graph: only these ops count.
    """
    kinds = activities(timeline.graph)
    code = {name: k for k, name in enumerate(kinds.names)}
    counts = kinds.code != code[HOST]
    if among is not None:
        counts &= among
    out = []
    for rank, ops in by_rank(timeline.graph):
        some = ops[counts[ops]]
        if len(some):
            computes = kinds.code[some] == code[COMPUTE]
            transfers = ~computes & (kinds.code[some] != code.get(COPY, -1))
            out.append(_shares(timeline, rank, some, computes, transfers))
    return out


def _shares(
    timeline: Timeline,
    rank: int,
    ops: NDArray[np.int64],
    computes: NDArray[np.bool_],
    transfers: NDArray[np.bool_],
) -> Shares:
    start, end = timeline.start[ops], timeline.end[ops]
    span = float(end.max() - start.min())
    busy, compute = union(start, end), union(start[computes], end[computes])
    moving = union(start[transfers], end[transfers])
    both = float(within(moving, compute).sum())
    whole = span or 1.0
    return Shares(
        rank,
        span,
        (span - busy.seconds()) / whole,
        compute.seconds() / whole,
        (busy.seconds() - compute.seconds()) / whole,
        both / moving.seconds() if len(moving.start) else 0.0,
    )
