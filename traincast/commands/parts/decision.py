"""The page of a search: the decision, why it wins, what else there was, and timelines of a few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim import units
from sim.analysis.steps import one
from sim.files import together
from sim.runs.compare import Way, compare
from sim.runs.winner import why
from sim.table import Table, table
from traincast.commands.parts.comparison import winner_table

if TYPE_CHECKING:
    from sim.search.found import Found, Row
    from sim.search.searching import Report

PAGE, FRONTIER, WHY = "search.html", "frontier.png", "why.png"
REASONS = {
    "simulated": "were simulated and fit",
    "bound": "cannot be better: their lower bound is above what was found",
    "budget": "might be better, but the budget was spent",
    "memory": "do not fit the GPU",
    "refused": "cannot run",
}
"""What became of layouts and groups of them, by outcome."""


def write(
    found: Found, recipe: Path, common: Mapping[str, Any], out: Path, report: Report
) -> list[Path]:
    """Write the page, and pictures of the frontier and of why the best layout wins."""
    from sim import plots
    from sim import report as pages
    from sim.plots.frontier import Point

    chosen = {found.name(row): {**common, **found.overrides(row)} for row in few(found)}
    ways = compare(recipe, chosen, report)
    ran = {way.name: way.result for way in ways if way.result}
    first = next(iter(ran.values()))
    shown = {name: (one(of.timeline, of.recipe.ramps[0]), of.summary) for name, of in ran.items()}
    layouts = [(found.name(row), row) for row in found.simulated]
    title = f"{first.recipe.model.name} on {first.recipe.cluster.gpus:,} {first.cluster.gpu.name}"
    capacity = first.cluster.gpu.memory
    text = pages.of_search(
        title, layouts, shown, capacity, figures=figures(found), others=_tables(found, ways),
        notes=[sentence(found)],
    )  # fmt: skip
    points = [Point(name, row["step_time_s"], row["peak_bytes"]) for name, row in layouts]
    drawn = {FRONTIER: plots.frontier(points, capacity=capacity, title=title)}
    if cause := why(ways):
        names = (cause.runner_up, cause.winner)
        drawn[WHY] = plots.waterfall(
            cause.before_s, cause.after_s, cause.changes(), names=names, title=title
        )
    files = [out / name for name in (PAGE, *drawn)]
    with together(*files) as (page, *pictures):
        page.write_text(text, encoding="utf-8", newline="")
        for picture, temporary in zip(drawn.values(), pictures, strict=True):
            plots.save(picture, temporary)
    return files


def few(found: Found) -> list[Row]:
    """Return the best layout, the next one, and the one of the frontier that holds least."""
    rows = [*found.best[:2], *found.frontier[-1:]]
    return list({found.name(row): row for row in rows}.values())


def sentence(found: Found) -> str:
    """Return the decision in a sentence, and how sure it is.

    >>> from sim.search.found import Found
    >>> row = {"outcome": "simulated", "parallelism.tp": 8, "step_time_s": 2.0}
    >>> sentence(Found([{**row, "peak_bytes": 2.0**30}], ("parallelism.tp",), "step_time", "s", 0))
    'Take tp 8: 2 s a step, 1.00 GiB on the fullest GPU. No other layout of the search is better.'
    """
    best = found.best[0]
    sure = (
        f"Of the layouts that were not simulated, one may be up to {found.gap:.1%} better."
        if found.gap
        else "No other layout of the search is better."
    )
    time, held = units.seconds(best["step_time_s"]), units.size(best["peak_bytes"])
    return f"Take {found.name(best)}: {time} a step, {held} on the fullest GPU. {sure}"


def figures(found: Found) -> list[tuple[str, float, str, str]]:
    """Return the headline figures of the page."""
    best = found.best[0]
    return [
        ("step time", best["step_time_s"], "s", "Of the best layout."),
        ("MFU", best["mfu"], "share", "Of the best layout: the model's FLOP/s over the GPUs'."),
        ("peak memory", best["peak_bytes"], "bytes", "Of the best layout, on its fullest GPU."),
        ("gap", found.gap, "share",
         "How much better a layout that was not simulated could be, by its lower bound."),
    ]  # fmt: skip


def _tables(found: Found, ways: list[Way]) -> list[Table]:
    counts = [(REASONS[key], count) for key, count in found.counts.items()]
    looked = table(
        counts, "layouts that", "number", title="What was looked at",
        note="Layouts, or groups of layouts that were judged together.",
    )  # fmt: skip
    cause = why(ways)
    return [
        looked,
        *([winner_table(replace(cause, runner_up="the next", winner="the best"))] if cause else []),
    ]
