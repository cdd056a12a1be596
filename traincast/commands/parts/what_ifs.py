"""Computes and shows ``traincast run --what-if``: the step before, and after each edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.analysis.steps import steady
from sim.runs.run import Result
from sim.runs.summary import step_seconds
from traincast.commands.parts import tables


def figures(result: Result, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the step time under each edit alone and, if there are several, under all of them."""
    from sim.engine import simulate
    from sim.whatif import edited

    before = result.summary["step_time_s"]
    out = []
    for text in [*texts, *(["; ".join(texts)] if len(texts) > 1 else [])]:
        changed = edited(result.timeline.graph, result.machine, text, result.cluster)
        found = steady(simulate(*changed), *result.recipe.ramps)
        after = step_seconds(result.recipe, found)
        out.append({"edit": text, "step_time_s": after, "gain_s": before - after})
    return out


def show(before: float, found: Sequence[dict[str, Any]]) -> None:
    """Print a row for each edit: the step time, and how much shorter or longer it is."""
    rows: list[tuple[Any, ...]] = [("as it is", before, None, None)]
    for one in found:
        after = one["step_time_s"]
        rows.append((one["edit"], after, after / before - 1, before / after if after else None))
    columns = ("step, s", 1, ".6g"), ("change", 2, "+.2%"), ("times as fast", 3, ".4f")
    tables.show(rows, "what if", *columns)
