"""Several training steps in one timeline: when each ends, and what one takes in the steady state.

Pipelines that are flushed repeat themselves from the second step on. One that is never flushed
(PipeDream) fills up first and drains at the end; what is between goes on for ever.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from sim.timeline import Timeline


class Steady(NamedTuple):
    """A stretch of a timeline, and how many steps end in it."""

    timeline: Timeline
    """What is before and after it has no length."""
    seconds: float
    steps: int


def ends(timeline: Timeline) -> Floats:
    """The second at which each step ends on the last of its ranks."""
    graph = timeline.graph
    out = np.full(int(graph.step.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(out, graph.step, timeline.end)
    return out


def laps(timeline: Timeline) -> Floats:
    """The ends of the steps, if no microbatch of one begins before those of the one before end.

    Otherwise, as when a pipeline is never flushed, there is one lap: the end of all.
    """
    graph, end = timeline.graph, ends(timeline)
    ops = np.flatnonzero(graph.microbatch >= 0)
    first, last = np.full(len(end), np.inf), np.full(len(end), -np.inf)
    np.minimum.at(first, graph.step[ops], timeline.start[ops])
    np.maximum.at(last, graph.step[ops], timeline.end[ops])
    apart = len(ops) > 0 and bool((first[1:] >= last[:-1]).all())
    return end if apart else end.max(keepdims=True, initial=-np.inf)


def steady(timeline: Timeline, lead: int = 1, drain: int = 0) -> Steady:
    """The steps without the first ``lead`` and the last ``drain``; at least one stays, if any.

    Of a timeline of one step all of it.
    """
    end = ends(timeline)
    first, after = kept(len(end), lead, drain)
    if first < 1:
        return Steady(timeline, timeline.seconds, max(len(end), 1))
    clipped = _clipped(timeline, end[first - 1], end[after - 1])
    return Steady(clipped, clipped.seconds, after - first)


def kept(steps: int, lead: int = 1, drain: int = 0) -> tuple[int, int]:
    """The first step of the steady state, and the one behind its last.

    >>> kept(4, 1, 1), kept(2, 1, 1), kept(1, 1, 1)
    ((1, 3), (1, 2), (0, 1))
    """
    first = min(lead, steps - 1)
    return (first, max(first + 1, steps - drain)) if first > 0 else (0, steps)


def one(timeline: Timeline, lead: int = 1) -> Timeline:
    """The step after the first ``lead``, from 0 s on; of one step, all of it."""
    end = ends(timeline)
    first = min(lead, len(end) - 1)
    if first < 1:
        return timeline
    shown = _clipped(timeline, end[first - 1], end[first])
    return Timeline(shown.graph, shown.start - end[first - 1], shown.end - end[first - 1])


def _clipped(timeline: Timeline, low: float, high: float) -> Timeline:
    start, end = (np.clip(column, low, high) for column in (timeline.start, timeline.end))
    return Timeline(timeline.graph, start, end)
