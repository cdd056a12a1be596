"""Sums up errors of step times by family: runs of one framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from scipy.stats import spearmanr

from validation.tables import Peer

if TYPE_CHECKING:  # run itself imports this module
    from validation.run import ComparedFigure, TableOutcome

FEWEST = 3
"""Fewest rows that have a rank correlation."""


class Family(NamedTuple):
    """A family's errors, as shares of the measured step times."""

    name: str
    rows: int
    mean: float  # of |error|
    bias: float  # mean of the signed error
    max: float  # largest |error|
    rank: float | None  # Spearman's, of throughput per GPU; None where it is not defined
    coverage: float | None  # share of rows whose interval holds the measured, if there are any
    width: float | None  # median width of the intervals, as shares of predicted step times
    peers: tuple[Mapping[str, object], ...]  # other simulators' errors on tables of this family


def families(outcomes: Sequence[TableOutcome]) -> list[Family]:
    """Return the errors of every family that has rows among the outcomes, by name."""
    rows = grouped(outcomes)
    return [_family(name, rows[name], _peers(name, outcomes)) for name in sorted(rows)]


def grouped(outcomes: Iterable[TableOutcome]) -> dict[str, list[ComparedFigure]]:
    """Return the step times of every family, in the order of the tables."""
    found: dict[str, list[ComparedFigure]] = {}
    for outcome in outcomes:
        for row in outcome.rows:
            if row.family:
                found.setdefault(row.family, []).append(row)
    return found


def rank_correlation(rows: Sequence[ComparedFigure]) -> float | None:
    """Return Spearman's rank correlation of throughput per GPU, predicted and measured.

    Throughput is the model's FLOP/s: tokens/s would rank models by their size. None for fewer than
    three rows, or where all throughputs are equal.
    """
    predicted = [row.flops / row.predicted for row in rows]
    measured = [row.flops / row.measured for row in rows]
    if len(rows) < FEWEST or len(set(predicted)) == 1 or len(set(measured)) == 1:
        return None
    return round(float(spearmanr(predicted, measured).statistic), 12)


def _family(name: str, rows: Sequence[ComparedFigure], peers: Sequence[Peer]) -> Family:
    errors = [row.error for row in rows]
    mean, bias = fsum(map(abs, errors)) / len(errors), fsum(errors) / len(errors)
    told = tuple(peer._asdict() for peer in peers)
    largest, rank = max(map(abs, errors)), rank_correlation(rows)
    coverage, width = covered(rows)
    return Family(name, len(rows), mean, bias, largest, rank, coverage, width, told)


def covered(rows: Sequence[ComparedFigure]) -> tuple[float, float] | tuple[None, None]:
    """Return the share of rows whose interval holds the measured, and the median relative width."""
    known = [(row, *row.interval) for row in rows if row.interval]
    if not known:
        return None, None
    inside = sum(low <= row.measured <= high for row, low, high in known)
    widths = [(high - low) / row.predicted for row, low, high in known]
    return inside / len(known), median(widths)


def _peers(name: str, outcomes: Iterable[TableOutcome]) -> list[Peer]:
    """Return the peers of tables whose step times are all of this family."""
    return [
        outcome.table.peer
        for outcome in outcomes
        if outcome.table.peer and {row.family for row in outcome.rows} == {name}
    ]
