"""Finds when the host's threads are inside operators and calls, and where an annotation is.

Between operators Python runs, about which the profiler's other rows say nothing.
"""

from __future__ import annotations

import numpy as np

from schedules.input_error import InputError
from sim.analysis.intervals import Intervals, union
from traces.kineto.build import AlignedRank
from traces.recording import Selection


def busy(
    one: AlignedRank, selection: Selection, first: float, began: float
) -> dict[tuple[int, str], Intervals]:
    """Return, by rank and stream, the busy times inside the selection, in seconds since ``began``.

    The window counts from the second ``first``. Both are seconds of the common clock.
    """
    of = one.of.trace.operators
    thread = np.frombuffer(of.thread, np.int64)
    start, end = one.seconds(of.start), one.seconds(of.end)
    low, high = bounds(one, selection, first)
    inside = (end > low) & (start < high)
    start, end = np.maximum(start, low) - began, np.minimum(end, high) - began
    out = {}
    for number in np.unique(thread).tolist():
        mine = inside & (thread == number)
        out[one.rank, f"host {number}"] = union(start[mine], end[mine])
    return out


def bounds(one: AlignedRank, selection: Selection, first: float) -> tuple[float, float]:
    """Return the seconds of the common clock between which the selection lies on a rank."""
    low, high = (first + t for t in selection.window or (-np.inf, np.inf))
    if within := instance(one, selection):
        a, b = one.seconds(within)
        low, high = max(low, float(a)), min(high, float(b))
    if selection.step is not None:
        starts = one.seconds(one.of.step_starts)
        k = one.of.steps.index(selection.step)
        low = max(low, float(starts[k]))
        high = min(high, float(starts[k + 1])) if k + 1 < len(starts) else high
    return low, high


def instance(one: AlignedRank, selection: Selection) -> tuple[int, int] | None:
    """Return begin and end of the selected annotation, in nanoseconds; None if none is selected.

    Raises InputError where the rank has no such annotation.
    """
    name = selection.annotation
    if name is None:
        return None
    marks = [mark for mark in one.of.trace.marks if name in mark.name]
    if selection.instance >= len(marks):
        if marks:
            raise InputError(
                f"rank {one.rank} has {len(marks)} annotations {name!r}, counted from 0, but no "
                f"{selection.instance}"
            )
        there = sorted({mark.name for mark in one.of.trace.marks})
        some = ", ".join(there[:6]) + (", ..." if len(there) > 6 else "") or "none"
        raise InputError(f"rank {one.rank} has no annotation {name!r}; there are {some}")
    return marks[selection.instance].start, marks[selection.instance].end
