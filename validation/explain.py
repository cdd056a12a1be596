"""Says what makes up a published step time: effects of load on the GPU, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from schedules.input_error import InputError
from sim.recipe import recipe_file
from sim.runs.explain import Explained, explain
from sim.runs.run import Report
from validation import tables
from validation.tables import Row


class ExplainedRow(NamedTuple):
    """A published step time in seconds, and what makes up its prediction."""

    row: Row
    step: Explained


def explain_row(
    name: str, names: Sequence[str] = (), report: Report = lambda *_: None
) -> ExplainedRow:
    """Explain the row of this id, of these tables or of all.

    Raises InputError where there is no such row, or it is no step time.
    """
    row = _row(name, [row for table in names or tables.names() for row in tables.read(table).rows])
    return ExplainedRow(row, explain(recipe_file.load(row.recipe, row.overrides), report))


def _row(name: str, rows: Sequence[Row]) -> Row:
    found = [row for row in rows if row.id == name]
    steps = [row for row in found if row.figure == "step"]
    if steps:
        return steps[0]
    if found:
        raise InputError(f"{name} is no step time but {found[0].figure}; only steps are explained")
    near = get_close_matches(name, [row.id for row in rows if row.figure == "step"], 1, 0.4)
    hint = f"did you mean {near[0]}?" if near else "validation/results.md has them all"
    raise InputError(f"no row {name!r} of published step times; {hint}")
