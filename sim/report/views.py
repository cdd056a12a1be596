"""Timelines with what the analyses say about them, ready for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.bubbles import bubbles
from sim.analysis.memory import curves
from sim.analysis.path import path
from sim.report.page import page
from sim.report.panel import Panel
from sim.report.tables import figures, of_ops, of_summary
from sim.timeline import Timeline


def panel(name: str, timeline: Timeline, capacity: float | None = None) -> Panel:
    """A timeline with its critical path, idle intervals and memory.

    ``capacity`` is what a GPU holds, in bytes; a timeline without any memory has no curves.
    """
    if not len(timeline.graph):
        return Panel(name, timeline)
    held = curves(timeline)
    if not any(curve.bytes.any() for curve in held.values()):
        held, capacity = {}, None
    return Panel(name, timeline, path(timeline), bubbles(timeline), held, capacity)


def of_run(
    title: str, timeline: Timeline, summary: Mapping[str, Any], capacity: float | None = None
) -> str:
    """The page of a simulated run, from its timeline and what summary.json says."""
    return page(
        title,
        [panel(title, timeline, capacity)],
        figures=figures(summary),
        tables=[*of_summary(summary), of_ops(timeline)],
    )
