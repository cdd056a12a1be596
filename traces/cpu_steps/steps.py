"""Cuts ranks' traces into steps at barriers, and tells each rank's kinds of time apart in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedules.input_error import InputError
from sim.analysis.intervals import Intervals, union, within
from sim.graph import Longs
from traces.cpu_steps.run import RankStep
from traces.cpu_steps.trace import Mark, RankTrace
from traces.kineto.cpu_waits import Pieces, computing, pieces, waiting


@dataclass(frozen=True, eq=False)
class Part:
    """One rank in one step; instants in nanoseconds from the step's begin, some before it."""

    step: int
    rank: int
    end: int  # when its update ends, or its last operator if it has no update
    names: Sequence[str]  # of the operators of its main thread
    rows: Sequence[int]  # and their rows in the rank's trace
    start: Longs  # their begins
    of: Pieces
    math: Intervals  # disjoint, by piece: not joined
    math_piece: Longs  # rows of ``of``
    wait: Intervals
    collectives: Sequence[Mark]
    backward: int  # when the backward began, or the step's end
    updates: Sequence[tuple[int, int]]  # begin and end of Optimizer.step and zero_grad


def parts(traces: Sequence[RankTrace], skip: int = 0) -> list[list[Part]]:
    """Return the part of each rank in each step after the first ``skip``, numbered from 0.

    Raises InputError where ranks saw different steps, or none is left.
    """
    counts = {len(trace.barriers) for trace in traces}
    if len(counts) != 1 or not max(counts):
        raise InputError(
            f"traces of one run have {sorted(counts)} barriers; steps are cut by a barrier before "
            "each of them, on every rank"
        )
    if max(counts) <= skip:
        raise InputError(f"traces have {max(counts)} steps, of which the first {skip} are left out")
    begins = [max(t.barriers[k].end for t in traces) for k in range(max(counts))]
    return [
        [replace(_part(t, k, begin), step=k - skip) for t in traces]
        for k, begin in enumerate(begins)
        if k >= skip
    ]


def _part(trace: RankTrace, step: int, begin: int) -> Part:
    """Return one rank in one step.

    A rank that left the barrier before others has operators before the step's begin.
    """
    mine = trace.barriers[step]
    last = step + 1 == len(trace.barriers)
    until = 1 << 62 if last else _called(trace, trace.barriers[step + 1].start)
    updates = [(a - begin, b - begin) for _, a, b in trace.updates if mine.end <= a < until]
    called = [k for k, name in enumerate(trace.names) if "barrier" not in name]
    rows = np.array(called, np.int64)
    rows = rows[(trace.end[rows] > mine.end) & (trace.start[rows] < until)]
    over = max((b for _, b in updates), default=int(trace.end[rows].max(initial=begin)) - begin)
    rows = rows[trace.start[rows] < begin + over]
    start = np.maximum(trace.start[rows], mine.end) - begin
    end = np.minimum(trace.end[rows] - begin, over)
    names = [trace.names[k] for k in rows.tolist()]
    of = pieces(start, end, mine.end - begin, over)
    some = [
        mark._replace(start=mark.start - begin, end=mark.end - begin)
        for mark in trace.collectives
        if mine.start <= mark.start < begin + over
    ]
    return Part(
        step, trace.rank, over, names, rows.tolist(), start, of,
        *_math(of, names), _waits(of, names, some), some, _backward(names, start, over), updates,
    )  # fmt: skip


def _called(trace: RankTrace, instant: int) -> int:
    """Return when the main thread called for the barrier that gloo began at that instant."""
    calls = [
        at for name, at in zip(trace.names, trace.start.tolist(), strict=True) if "barrier" in name
    ]
    k = bisect_right(calls, instant) - 1
    return calls[k] if k >= 0 else instant


def _math(of: Pieces, names: Sequence[str]) -> tuple[Intervals, Longs]:
    rows = np.flatnonzero(np.append(computing(of, names), False)[of.owner])
    return Intervals(of.start[rows].astype(float), of.end[rows].astype(float)), rows


def _waits(of: Pieces, names: Sequence[str], some: Sequence[Mark]) -> Intervals:
    spans = np.array([(mark.start, mark.end) for mark in some], np.int64).reshape(-1, 2)
    return waiting(of, names, spans[:, 0], spans[:, 1])


def _backward(names: Sequence[str], start: Longs, over: int) -> int:
    found = (k for k, name in enumerate(names) if name.startswith("autograd::engine::"))
    k = next(found, None)
    return over if k is None else int(start[k])


def moving(marks: Sequence[Mark], end: int) -> Intervals:
    """Return when at least one collective is under way, from the step's begin up to an instant."""
    spans = np.array([(max(mark.start, 0), min(mark.end, end)) for mark in marks], float).reshape(
        -1, 2
    )
    return union(spans[:, 0], spans[:, 1])


def rank_step(part: Part) -> RankStep:
    """Return where the time of one rank's main thread went, and what ran beside collectives."""
    moves = moving(part.collectives, part.end)
    whole = Intervals(np.zeros(1), np.array([part.end], float))
    math, wait = (round(within(whole, i).sum()) for i in (part.math, part.wait))
    beside, exposed = (float(within(i, moves).sum()) for i in (part.math, part.wait))
    parts_ = (part.end, math, part.end - math - wait, wait, moves.seconds(), exposed, beside)
    return RankStep(part.step, part.rank, *(ns / 1e9 for ns in parts_))
