"""The pages of runs, comparisons, differences and recordings, from timelines and their analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.analysis.bubbles import bubbles
from sim.analysis.path import path
from sim.analysis.words import interval, nearest
from sim.memory.curve import curves
from sim.memory.runtime import besides
from sim.plots.frontier import Point
from sim.report.definitions import INTERVAL
from sim.report.others import of_changes, of_layouts, of_ranks, of_ways
from sim.report.page import Figure, page
from sim.report.panel import Panel
from sim.report.plane import plane
from sim.report.tables import figures, of_ops, of_summary
from sim.table import Table, table
from sim.timeline import Timeline


def panel(
    name: str, timeline: Timeline, capacity: float | None = None, besides: float = 0.0
) -> Panel:
    """Return a timeline with its critical path, idle intervals and memory.

    ``capacity`` is the memory of a GPU in bytes, and ``besides`` what of it CUDA's context and NCCL
    take, which the curves then have too; a timeline that holds no memory has no curves.
    """
    if not len(timeline.graph):
        return Panel(name, timeline)
    held = curves(timeline)
    if not any(curve.bytes.any() for curve in held.values()):
        held, capacity = {}, None
    held = {rank: curve.with_more(besides) for rank, curve in held.items()}
    return Panel(name, timeline, path(timeline), bubbles(timeline), held, capacity)


def of_run(
    title: str, timeline: Timeline, summary: Mapping[str, Any], capacity: float | None = None
) -> str:
    """Return the page of a simulated run, from its timeline and its summary.json."""
    return page(
        title,
        [panel(title, timeline, capacity, besides(summary["memory"]))],
        figures=figures(summary),
        tables=[*of_summary(summary), of_ops(timeline)],
        notes=[
            f"80 % interval of the step time: {interval(summary)}. {INTERVAL}",
            f"Nearest measured runs, and how far off they are predicted: {nearest(summary)}.",
        ],
    )


def of_comparison(
    title: str,
    ways: Mapping[str, tuple[Timeline, Mapping[str, Any]]],
    capacity: float | None = None,
    refused: Mapping[str, str] | None = None,
    others: Sequence[Table] = (),
) -> str:
    """Return the page of several ways to run a job: each one's timeline and summary.json.

    ``refused`` has the ways that cannot run, and why; ``others`` are further tables.
    """
    return page(
        title,
        [
            panel(name, timeline, capacity, besides(summary["memory"]))
            for name, (timeline, summary) in ways.items()
        ],
        tables=[
            of_ways({name: summary for name, (_, summary) in ways.items()}),
            *others,
            table((refused or {}).items(), "way", "why", title="Ways that cannot run"),
        ],
    )


def of_search(
    title: str,
    layouts: Sequence[tuple[str, Mapping[str, Any]]],
    chosen: Mapping[str, tuple[Timeline, Mapping[str, Any]]],
    capacity: float,
    *,
    figures: Sequence[Figure] = (),
    others: Sequence[Table] = (),
    notes: Sequence[str] = (),
) -> str:
    """Return the page of a search: a decision, what it was taken from, and the timelines of a few.

    ``layouts`` are the names and rows of all that was simulated and fits, the best first, with the
    columns of a search's file; ``chosen`` has the timelines and summaries of some of them.
    """
    points = [Point(name, row["step_time_s"], row["peak_bytes"]) for name, row in layouts]
    return page(
        title,
        [
            panel(name, timeline, capacity, besides(summary["memory"]))
            for name, (timeline, summary) in chosen.items()
        ],
        figures=figures,
        pictures=[plane(points, capacity, "peak memory")],
        tables=[of_layouts(layouts), *others],
        notes=notes,
    )


def of_difference(
    names: tuple[str, str], timelines: tuple[Timeline, Timeline], found: Mapping[str, Any]
) -> str:
    """Return the page of two timelines and of what ``traincast diff --json`` says about them."""
    return page(
        f"{names[0]} → {names[1]}",
        [panel(name, timeline) for name, timeline in zip(names, timelines, strict=True)],
        figures=[
            ("before", found["before_s"], "s", "First start to last end."),
            ("after", found["after_s"], "s", "First start to last end."),
            ("difference", found["difference_s"], "s", "After less before."),
        ],
        tables=of_changes(found),
    )  # fmt: skip


def of_recording(title: str, timeline: Timeline, found: Mapping[str, Any]) -> str:
    """Return the page of a recorded run and of what ``traincast analyze --json`` says about it."""
    return page(
        title,
        [panel(title, timeline)],
        figures=[("span", timeline.seconds, "s", "First start to last end of any rank.")],
        tables=[of_ranks(found), of_ops(timeline)],
        notes=found.get("warnings", ()),
    )  # fmt: skip
