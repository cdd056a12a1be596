"""A helper of analyses: sets of instants as sorted, disjoint intervals in two columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph import Floats, Longs


class Intervals(NamedTuple):
    """Disjoint half-open intervals of seconds, ascending."""

    start: Floats
    end: Floats

    def seconds(self) -> float:
        """Return how long the intervals are together."""
        return float((self.end - self.start).sum())


def union(start: Floats, end: Floats) -> Intervals:
    """Return the instants that are in at least one of the intervals, in seconds.

    >>> union(np.array([7.0, 0.0, 1.0, 3.0]), np.array([8.0, 5.0, 2.0, 6.0]))
    Intervals(start=array([0., 7.]), end=array([6., 8.]))
    """
    start, end = _ascending(start, end)[1:]
    if not len(start):
        return Intervals(start, end)
    reach = np.maximum.accumulate(end)
    opens = np.append(True, start[1:] > reach[:-1])
    closes = np.append(opens[1:], True)
    return Intervals(start[opens], reach[closes])


def first_come(start: Floats, end: Floats) -> tuple[Longs, Intervals]:
    """Give each covered instant to the interval that began first (then to the lower row).

    Returns the row that owns each piece, and the pieces.

    >>> first_come(np.array([0.0, 1.0, 2.0]), np.array([3.0, 2.0, 5.0]))
    (array([0, 2]), Intervals(start=array([0., 3.]), end=array([3., 5.])))
    """
    rows, start, end = _ascending(start, end)
    if not len(start):
        return rows, Intervals(start, end)
    taken = np.maximum.accumulate(end)[:-1]
    start = np.append(start[:1], np.maximum(start[1:], taken))
    left = start < end
    return rows[left], Intervals(start[left], end[left])


def complement(of: Intervals, low: float, high: float) -> Intervals:
    """Return the instants of [low, high) that are in none of the intervals.

    >>> complement(Intervals(np.array([1.0]), np.array([2.0])), 0.0, 5.0)
    Intervals(start=array([0., 2.]), end=array([1., 5.]))
    """
    start, end = np.append(low, of.end), np.append(of.start, high)
    left = start < end
    return Intervals(start[left], end[left])


class Covered:
    """Intervals, summed up once, to be asked many times how much of them lies before an instant."""

    def __init__(self, of: Intervals) -> None:
        self._of, self._total = of, np.append(0.0, np.cumsum(of.end - of.start))

    def before(self, instants: Floats) -> Floats:
        """Return the seconds of the intervals that lie before each instant."""
        if not len(self._of.start):
            return np.zeros(len(instants))
        k = np.searchsorted(self._of.start, instants, "right")
        over = np.maximum(self._of.end[k - 1] - instants, 0.0)
        return np.where(k > 0, self._total[k] - over, 0.0)

    def until(self, instant: float) -> float:
        """Return the seconds of the intervals that lie before one instant, to the same bit.

        >>> Covered(Intervals(np.array([1.0, 4.0]), np.array([3.0, 6.0]))).until(5.0)
        3.0
        """
        k = int(self._of.start.searchsorted(instant, "right"))
        return float(self._total[k] - max(self._of.end[k - 1] - instant, 0.0)) if k else 0.0


def covered_before(of: Intervals, instants: Floats) -> Floats:
    """Return the seconds of the intervals that lie before each instant."""
    return Covered(of).before(instants)


def within(pieces: Intervals, of: Intervals) -> Floats:
    """Return the seconds of each piece that lie in ``of``; pieces may overlap, in any order."""
    return covered_before(of, pieces.end) - covered_before(of, pieces.start)


def covering(of: Intervals, instants: Floats) -> Longs:
    """Return the row of the interval that holds each instant, -1 where none does."""
    k = np.searchsorted(of.start, instants, "right") - 1
    if not len(of.start):
        return k
    return np.where((k >= 0) & (instants < of.end[k]), k, -1)


def _ascending(start: Floats, end: Floats) -> tuple[Longs, Floats, Floats]:
    rows = np.flatnonzero(start < end)
    rows = rows[np.argsort(start[rows], kind="stable")]
    return rows, start[rows], end[rows]
