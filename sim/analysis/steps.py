"""A helper of analyses: when each of several training steps ends, and how long a steady one takes.

A pipeline that is flushed repeats itself from the second step on. One that is never flushed
(PipeDream) fills up first and drains at the end; the steps between are the steady state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from sim.timeline import Timeline


class Steady(NamedTuple):
    """The steady stretch of a timeline, and how many steps end in it."""

    timeline: Timeline
    """The timeline, in which all that is before and after the stretch takes no time."""
    seconds: float
    steps: int


def ends(timeline: Timeline) -> Floats:
    """Return the time at which each step ends on the last of its ranks, in seconds."""
    graph = timeline.graph
    count = int(graph.step.max(initial=-1)) + 1
    if count == 1:
        return np.array([timeline.span[1]])
    out = np.full(count, -np.inf)
    np.maximum.at(out, graph.step, timeline.end)
    return out


def laps(timeline: Timeline) -> Floats:
    """Return the end of each lap in seconds: a step, if steps do not overlap, else all of them.

    Steps overlap if a microbatch of one begins before the microbatches of the step before have
    ended, as in a pipeline that is never flushed.
    """
    graph, end = timeline.graph, ends(timeline)
    if len(end) == 1:
        return end
    ops = np.flatnonzero(graph.microbatch >= 0)
    first, last = np.full(len(end), np.inf), np.full(len(end), -np.inf)
    np.minimum.at(first, graph.step[ops], timeline.start[ops])
    np.maximum.at(last, graph.step[ops], timeline.end[ops])
    apart = len(ops) > 0 and bool((first[1:] >= last[:-1]).all())
    return end if apart else end.max(keepdims=True, initial=-np.inf)


def steady(timeline: Timeline, lead: int = 1, drain: int = 0) -> Steady:
    """Return the steps without the first ``lead`` and the last ``drain``; at least one stays.

    A timeline of one step is returned whole.
    """
    end = ends(timeline)
    first, after = kept(len(end), lead, drain)
    if first < 1:
        return Steady(timeline, timeline.seconds, max(len(end), 1))
    clipped = _clipped(timeline, end[first - 1], end[after - 1])
    return Steady(clipped, clipped.seconds, after - first)


def kept(steps: int, lead: int = 1, drain: int = 0) -> tuple[int, int]:
    """Return the first step of the steady state, and the step after its last.

    >>> kept(4, 1, 1), kept(2, 1, 1), kept(1, 1, 1)
    ((1, 3), (1, 2), (0, 1))
    """
    first = min(lead, steps - 1)
    return (first, max(first + 1, steps - drain)) if first > 0 else (0, steps)


def one(timeline: Timeline, lead: int = 1) -> Timeline:
    """Return the step after the first ``lead``, from 0 s on; a single step is returned whole."""
    end = ends(timeline)
    first = min(lead, len(end) - 1)
    if first < 1:
        return timeline
    shown = _clipped(timeline, end[first - 1], end[first])
    return Timeline(shown.graph, shown.start - end[first - 1], shown.end - end[first - 1])


def _clipped(timeline: Timeline, low: float, high: float) -> Timeline:
    start, end = (np.clip(column, low, high) for column in (timeline.start, timeline.end))
    return Timeline(timeline.graph, start, end)
