"""Reads the options of ``traincast search``, and shows and draws what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from sim import units
from sim.analysis.words import cause_name
from traincast.commands.parts import tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

    from sim.search.found import Found, Row
    from sim.search.largest import Largest


def numbers(text: str | None) -> list[int] | None:
    """Return the numbers of GPUs of ``--gpus``.

    >>> numbers("64,128"), numbers(None)
    ([64, 128], None)
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        raise InputError(f"--gpus takes numbers such as 64 or 32,64, not {text[:60]!r}")
    return [int(part) for part in parts]


def seconds(text: str | None) -> float | None:
    """Return the seconds of ``--deadline``.

    >>> seconds("5s"), seconds("800 ms")
    (5.0, 0.8)
    """
    if text is None:
        return None
    try:
        return units.duration(text)
    except ValueError:
        raise InputError(f"--deadline takes a time such as 5s, not {text[:60]!r}") from None


def largest(
    recipe: Path,
    what: str,
    gpus: list[int] | None,
    fixed: Mapping[str, object],
    common: Mapping[str, object],
) -> Largest:
    """Return the largest value with which a layout fits; refuse several numbers of GPUs."""
    from sim.search.largest import largest as find

    if gpus and len(gpus) > 1:
        raise InputError("--largest takes one number of --gpus")
    return find(recipe, what, gpus[0] if gpus else None, fixed, common)


def fitting(of: Largest) -> str:
    """Return a largest value in a sentence, with a layout that fits and its memory."""
    from sim.search.found import name

    layout = name({key: value for key, value in of.layout.items() if key != of.key})
    held = f"{units.size(of.bytes)} of {units.size(of.capacity)}"
    return f"{of.key} = {of.value:,} is the largest that fits: {held} with {layout}"


def show(of: Found) -> None:
    """Print the best layouts, the frontier, and what else was looked at."""
    columns: list[Any] = [
        ("layout", lambda row: of.name(row)),
        ("step, s", "step_time_s", ".4g"),
        *_objective(of),
        ("MFU", "mfu", ".1%"),
        ("idle", "idle_share_of_step", ".1%"),
        ("most of it", lambda row: cause_name(row["main_cause"]) if row["main_cause"] else "none"),
        ("exposed, s", "exposed_s", ".3g"),
        ("peak", "peak_bytes", "bytes"),
    ]
    tables.show(of.best, *columns, title="Best layouts")
    shown = [("layout", lambda row: of.name(row)), ("step, s", "step_time_s", ".4g"),
             ("peak", "peak_bytes", "bytes")]  # fmt: skip
    tables.show(of.frontier, *shown, title="Step time against memory: none is better in both")
    tables.say(sure(of))


def _objective(of: Found) -> list[Any]:
    return [] if of.objective == "step_time" else [(f"cost, {of.unit}", "cost", ".4g")]


def sure(of: Found) -> str:
    """Return in a sentence how many were tried, and how much better any other could be."""
    counts = {"simulated": 0, "bound": 0, "memory": 0, "budget": 0, "refused": 0, **of.counts}
    said = f"{counts['simulated']:,} simulated"
    why = {"memory": "do not fit", "bound": "cannot be better", "refused": "cannot run"}
    said += "".join(f", {counts[key]:,} {words}" for key, words in why.items() if counts[key])
    if not of.gap:
        return f"{said} (layouts, or groups of them); no other is better than the best."
    return (
        f"{said}, {counts['budget']:,} left when the budget was spent (layouts, or groups of "
        f"them); by their bounds one of those may be up to {of.gap:.1%} better than the best."
    )


def figures(of: Found) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "objective": of.objective,
        "unit": of.unit,
        "gap": of.gap,
        "counts": of.counts,
        "best": [_row(of, row) for row in of.best],
        "frontier": [_row(of, row) for row in of.frontier],
    }


def _row(of: Found, row: Row) -> dict[str, Any]:
    keys = ("cost", "step_time_s", "tokens_per_s", "mfu", "idle_share_of_step", "exposed_s",
            "main_cause", "main_cause_s", "peak_bytes", "energy_j", "bound_s")  # fmt: skip
    return {"layout": of.overrides(row), **{key: row[key] for key in keys}}


def draw(of: Found) -> Figure:
    """Draw step time against memory."""
    from sim import plots
    from sim.plots.frontier import Point

    points = [Point(of.name(r), r["step_time_s"], r["peak_bytes"]) for r in of.simulated]
    return plots.frontier(points, title="Layouts that were simulated")
