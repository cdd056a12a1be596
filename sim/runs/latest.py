"""When the last of many comes, expected from the last of some of them.

The greatest of k draws of a distribution is expected so many spreads above its mean, a figure that
depends on k and on the distribution's skewness alone. So a line through the times of the last of
some, against that figure, goes on to the last of all. The distribution is a shifted log-normal one,
which holds for a single kernel, and for a sum of many, which is nearly normal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

POINTS = 200
"""Points of the distribution at which its quantiles are averaged."""
DRAWS = 1000
"""Samples that are drawn for an error, whose 95 % are then known to some 3 %."""
NORMAL = NormalDist()
Shape = Callable[[float], float]
"""From a normal deviate to a deviate of a distribution, with mean 0 and spread 1 as well."""


class Latest(NamedTuple):
    """When the last of all comes."""

    seconds: float  # expected
    error: float  # standard deviation


class Line(NamedTuple):
    """The distribution that the last of parts tell."""

    mean: float
    spread: float
    off: float  # by which the last of parts are off the line, over what their own spread is

    def expected(self, most: float, others: int, skewness: float) -> float:
        """Return when the last of all comes, if the last of those that are drawn is ``most``."""
        all_of = [max(most, self.mean + self.spread * z) for z in _quantiles(others, skewness)]
        return math.fsum(all_of) / len(all_of)


def latest(last: Sequence[tuple[int, float]], others: int, skewness: float) -> Latest:
    """Return when the last of all comes, if ``others`` come besides the first of those in ``last``.

    ``last`` has counts and the time of the last of so many: of all that were drawn, then of the
    other :func:`parts` of them.
    """
    skewness = round(skewness, 1)
    line, counts = _line(last, skewness), tuple(k for k, _ in last)
    if not others or not line.off:
        return Latest(last[0][1], 0.0)
    seconds = line.expected(last[0][1], others, skewness)
    return Latest(seconds, line.off * _relative(counts, others, skewness))


def _line(last: Sequence[tuple[int, float]], skewness: float) -> Line:
    """Return the line through the last of parts, by weighted least squares."""
    points = [(*greatest(k, skewness), t) for k, t in last]
    weight = math.fsum(1 / v for _, v, _ in points)
    x0 = math.fsum(x / v for x, v, _ in points) / weight
    t0 = math.fsum(t / v for _, v, t in points) / weight
    square = math.fsum((x - x0) ** 2 / v for x, v, _ in points)
    slope = max(0.0, math.fsum((x - x0) * (t - t0) / v for x, v, t in points) / square)
    off = math.fsum((t - t0 - slope * (x - x0)) ** 2 / v for x, v, t in points)
    return Line(t0 - slope * x0, slope, math.sqrt(off / (len(points) - 2)))


@cache
def _relative(counts: tuple[int, ...], others: int, skewness: float) -> float:
    """Return the error over what the last of parts are off a line, for parts of so many each.

    It is found by a parametric bootstrap (Efron and Tibshirani 1993, section 6.5): 95 % of samples
    that are drawn from the distribution are within 1.96 such errors of what comes of it.
    """
    of, draw, wrong = shape(skewness), random.Random(0), list[float]()
    for _ in range(DRAWS):
        some = [of(_deviate(draw.random(), 1)) for _ in range(counts[0])]
        last = [(len(part), max(part)) for part in parts(some)]
        line, most = _line(last, skewness), max(last[0][1], of(_deviate(draw.random(), others)))
        wrong.append(abs(line.expected(last[0][1], others, skewness) - most) / line.off)
    return sorted(wrong)[round(0.95 * DRAWS)] / 1.96


def parts(some: Sequence[float]) -> list[list[float]]:
    """Return all, then both halves, and so on down to parts of two or three, and then each one.

    >>> [len(part) for part in parts([0.0] * 5)]
    [5, 3, 2, 1, 1, 1, 1, 1]
    """
    counts = [1]
    while 4 * counts[-1] <= len(some):
        counts.append(2 * counts[-1])
    return [list(some[k::n]) for n in [*counts, len(some)] for k in range(n)]


@cache
def shape(skewness: float) -> Shape:
    """Return a log-normal distribution of this skewness, or a normal one if that is below 0.001."""
    if skewness < 1e-3:
        return lambda z: z
    root = ((skewness + math.sqrt(skewness**2 + 4)) / 2) ** (1 / 3)
    ratio = root - 1 / root  # spread over mean
    sigma = math.sqrt(math.log1p(ratio**2))
    return lambda z: math.expm1(sigma * z - sigma**2 / 2) / ratio


@cache
def greatest(count: int, skewness: float) -> tuple[float, float]:
    """Return the mean and the variance of the greatest of so many draws."""
    of = _quantiles(count, skewness)
    mean = math.fsum(of) / len(of)
    return mean, math.fsum((x - mean) ** 2 for x in of) / len(of)


@cache
def _quantiles(count: int, skewness: float) -> tuple[float, ...]:
    """Return the quantiles of the greatest of so many draws, at points of equal probability."""
    of = shape(skewness)
    return tuple(of(_deviate((k + 0.5) / POINTS, count)) for k in range(POINTS))


def _deviate(u: float, count: int) -> float:
    """Return the normal deviate below which all of ``count`` are with probability ``u``."""
    above = -math.expm1(math.log(max(u, 1e-300)) / count)
    return -NORMAL.inv_cdf(min(max(above, 1e-300), 1 - 1e-16))
