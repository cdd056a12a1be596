"""Compares every published figure with what its recipe predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from sim.model.sizes import model_flops
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from validation import tables
from validation.families import families
from validation.figures import FIGURES, StepTime
from validation.tables import PublishedTable, Row

Progress = Callable[[str, int, int], None]  # (what is being done, figures done, figures in all)


class ComparedFigure(NamedTuple):
    """A figure, predicted and measured, in seconds or bytes, or a share."""

    id: str
    predicted: float
    measured: float
    share: bool = False
    family: str = ""
    flops: float = 0.0  # of the model, a step and a GPU; recomputation not counted
    interval: tuple[float, float] | None = None  # of 80 %, of step times
    moves: Mapping[str, tuple[float, float]] = {}
    """What assumed values do to a step: see :class:`~.figures.StepTime`."""

    @property
    def error(self) -> float:
        """The signed error as a share of the measured figure: −0.1 predicts a tenth too little.

        For figures that are shares themselves, it is the difference.

        >>> round(ComparedFigure("a", 0.05, 0.10, share=True).error, 12)
        -0.05
        """
        if self.share:
            return self.predicted - self.measured
        return self.predicted / self.measured - 1.0


class TableOutcome(NamedTuple):
    """A table's figures compared."""

    table: PublishedTable
    rows: Sequence[ComparedFigure]


class Total(NamedTuple):
    """Mean and largest |error|, and the number of rows."""

    mean: float
    max: float
    rows: int


def validate(names: Sequence[str] = (), progress: Progress | None = None) -> list[TableOutcome]:
    """Predict the figures of these tables, or of all.

    Raises InputError for a table that is not there.
    """
    chosen = [tables.read(name) for name in names or tables.names()]
    count, done = sum(len(table.rows) for table in chosen), 0
    outcomes = []
    for table in chosen:
        compared = []
        for row in table.rows:
            if progress:
                progress(f"{table.name} {row.id}", done, count)
            compared.append(compare(row)._replace(share=table.unit == "%"))
            done += 1
        outcomes.append(TableOutcome(table, compared))
    return outcomes


def compare(row: Row) -> ComparedFigure:
    """Predict one figure by its recipe."""
    recipe = recipe_file.load(row.recipe, row.overrides)
    found = FIGURES[row.figure](recipe)
    if isinstance(found, StepTime):
        figure = ComparedFigure(row.id, found.seconds, row.measured)
        figure = figure._replace(interval=found.interval, moves=found.moves)
    else:
        figure = ComparedFigure(row.id, found, row.measured)
    return figure._replace(family=row.family, flops=_flops(recipe)) if row.family else figure


def _flops(recipe: Recipe) -> float:
    batch, tp = recipe.training.global_batch, recipe.parallelism.tp
    return model_flops(recipe.architecture, batch, recipe.sequence, tp) / recipe.cluster.gpus


def total(rows: Iterable[ComparedFigure]) -> Total:
    """Return the total over some figures.

    >>> total([ComparedFigure("a", 9.0, 10.0), ComparedFigure("b", 26.0, 20.0)])
    Total(mean=0.2, max=0.3, rows=2)
    """
    errors = [abs(row.error) for row in rows]
    return Total(round(fsum(errors) / len(errors), 12), round(max(errors), 12), len(errors))


def steps(outcomes: Iterable[TableOutcome]) -> list[ComparedFigure]:
    """Return the step times among the figures: whole runs, which everything else explains."""
    return [
        compared
        for outcome in outcomes
        for row, compared in zip(outcome.table.rows, outcome.rows, strict=True)
        if row.figure == "step"
    ]


def summary(outcomes: Sequence[TableOutcome]) -> dict[str, Any]:
    """Return plain data: per row id and errors; per table mean, max, count, peer."""
    whole = steps(outcomes)
    return {
        "tables": [_table(outcome) for outcome in outcomes],
        "steps": _total(whole) if whole else None,
        "families": [family._asdict() for family in families(outcomes)],
    }


def _total(rows: Iterable[ComparedFigure]) -> dict[str, Any]:
    mean, largest, count = total(rows)
    return {"mean": mean, "max": largest, "count": count}


def _table(outcome: TableOutcome) -> dict[str, Any]:
    table = outcome.table
    return {
        "name": table.name,
        "title": table.title,
        "source": table.source,
        "assumed": table.assumed,
        "left_out": table.left_out,
        "unit": table.unit,
        "per_unit": tables.UNITS[table.unit],
        **_total(outcome.rows),
        "peer": table.peer._asdict() if table.peer else None,
        "rows": [_row(row) for row in outcome.rows],
    }


def _row(row: ComparedFigure) -> dict[str, Any]:
    out = {"id": row.id, "predicted": row.predicted, "measured": row.measured, "error": row.error}
    return out | ({"interval": [*row.interval]} if row.interval else {})
