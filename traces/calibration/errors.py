"""Fits by least squares, and says how far a fit is from what was measured, in relative errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.graph import Floats

NEAR = 0.6, 1.4  # the other starts lie between these multiples of the first
MARGIN = 0.02  # share of the range of the bounds within which no start lies
STEP = 1e-6  # share of an argument over which slopes are taken
BETTER = 0.99  # a start must reach this share of the known minimum's sum of squares to be kept
TOLERANCE = 1e-6  # a search ends when a step gains a smaller share of the sum of squares


class FitError(NamedTuple):
    """Errors of predicted against measured times of one family of rows, as fractions."""

    family: str
    rows: int
    mean: float  # mean absolute relative error
    bias: float  # mean signed relative error
    p90: float
    max: float

    def __str__(self) -> str:
        """Return a sentence for people.

        >>> str(FitError("copy", 2, 0.061, -0.0032, 0.1, 0.2))
        'copy: mean |error| 6.1 %, bias -0.3 %, nine of ten within 10.0 %, largest 20.0 %, 2 rows'
        """
        return (
            f"{self.family}: mean |error| {100 * self.mean:.1f} %, bias {100 * self.bias:+.1f} %, "
            f"nine of ten within {100 * self.p90:.1f} %, largest {100 * self.max:.1f} %, "
            f"{self.rows:,} rows"
        )


class Fit(NamedTuple):
    """Constants of one or more tables of a topology file, and how well they fit."""

    constants: Mapping[str, Any]
    errors: tuple[FitError, ...]


def solve(
    off: Callable[[Floats], Floats], start: Sequence[float], low: Sequence[float] | float,
    high: Sequence[float], slopes: Callable[[Floats], Floats] | None = None, starts: int = 1,
    known: Sequence[float] | None = None,
) -> Floats:  # fmt: skip
    """Return the arguments within bounds whose residuals have the least sum of squares.

    Where residuals have kinks there are many minima. In which one a search ends depends on the last
    bit of its steps, and so on the machine. So the best of several starts near the first is kept,
    and the minimum beside ``known`` arguments where no start finds one that is a hundredth better.
    """
    from scipy.optimize import least_squares

    first, lowest, highest = np.array(start), np.broadcast_to(low, len(start)), np.array(high)
    drawn = first * np.random.default_rng(0).uniform(*NEAR, (starts, len(start)))
    drawn[0] = first
    margin = MARGIN * (highest - lowest)
    if known is not None:
        drawn = np.vstack([known, drawn])
    found = [
        least_squares(
            off, x, slopes or "2-point", bounds=(lowest, highest), x_scale=first, ftol=TOLERANCE
        )
        for x in np.clip(drawn, lowest + margin, highest - margin)
    ]
    best = min(found, key=lambda one: float(one.cost))
    kept = found[0] if known is not None and best.cost > BETTER * found[0].cost else best
    x: Floats = kept.x
    return x


def differences(times: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Return the slopes of the times by each argument, a column each, from a step both ways."""
    steps = STEP * np.maximum(np.abs(x), 1e-3)
    both = [(times(x + way), times(x - way)) for way in np.diag(steps)]
    return np.stack([after - before for after, before in both], axis=1) / (2.0 * steps)


def fit_error(family: str, predicted: Floats, measured: Floats) -> FitError:
    """Return a row of the error table.

    >>> fit_error("toy", np.array([1.1, 0.9, 2.0]), np.array([1.0, 1.0, 2.0])).max
    0.1
    """
    relative = predicted / measured - 1.0
    size = np.abs(relative)
    worst = (size.mean(), relative.mean(), np.quantile(size, 0.9), size.max())
    return FitError(family, len(measured), *(round(float(e), 4) for e in worst))
