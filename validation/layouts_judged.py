"""Judges a choice among layouts by what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import correlation
from typing import NamedTuple

TOP = 3
"""How many layouts are at the top of those that are predicted."""
Seconds = Sequence[float]


class Compared(NamedTuple):
    """A job whose layouts were measured and simulated, in the same order."""

    job: str
    names: Sequence[str]
    measured: Seconds
    predicted: Seconds

    @property
    def best(self) -> int:
        """The layout that was measured fastest."""
        return least(self.measured, 1)[0]

    @property
    def choice(self) -> int:
        """The layout that is predicted to be fastest."""
        return least(self.predicted, 1)[0]

    @property
    def regret(self) -> float:
        """See :func:`regret`."""
        return regret(self.measured, self.predicted)

    @property
    def blind(self) -> float:
        """The regret in the mean of all layouts."""
        return mean(self.measured) / min(self.measured) - 1

    @property
    def holds(self) -> bool:
        """See :func:`top_holds`."""
        return top_holds(self.measured, self.predicted)

    @property
    def chance(self) -> float:
        """How likely three layouts drawn at random hold the fastest."""
        return min(1.0, TOP / len(self.names))

    @property
    def rank(self) -> float:
        """See :func:`rank_correlation`."""
        return rank_correlation(self.measured, self.predicted)


def least(seconds: Seconds, count: int) -> list[int]:
    """Return the indices of the fewest seconds, the least first; of equals the first comes first.

    >>> least([3.0, 1.0, 2.0], 2)
    [1, 2]
    """
    return sorted(range(len(seconds)), key=seconds.__getitem__)[:count]


def regret(measured: Seconds, predicted: Seconds) -> float:
    """Return by what share the layout predicted fastest was measured slower than the fastest.

    >>> regret([1.0, 1.5], [3.0, 2.0])
    0.5
    """
    return measured[least(predicted, 1)[0]] / min(measured) - 1


def top_holds(measured: Seconds, predicted: Seconds, top: int = TOP) -> bool:
    """Return whether the layout measured fastest is among the first ``top`` predicted fastest.

    >>> top_holds([1.0, 1.5], [3.0, 2.0], 1)
    False
    """
    return least(measured, 1)[0] in least(predicted, top)


def rank_correlation(measured: Seconds, predicted: Seconds) -> float:
    """Return Spearman's rank correlation; equal seconds share their mean rank.

    Raises StatisticsError where all seconds of either are equal.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    return correlation(_ranks(measured), _ranks(predicted))


def _ranks(seconds: Seconds) -> list[float]:
    return [(sum(o < s for o in seconds) + sum(o <= s for o in seconds)) / 2 for s in seconds]


def mean(values: Seconds) -> float:
    """Return the mean.

    >>> mean([1.0, 2.0])
    1.5
    """
    return fsum(values) / len(values)
