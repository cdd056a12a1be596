"""Fitting by least squares, and how far a fit is from what was measured, in relative errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class FitError(NamedTuple):
    """Predicted against measured times of one family of rows; errors are fractions."""

    family: str
    rows: int
    mean: float  # of the absolute relative error
    bias: float  # mean signed relative error
    p90: float
    max: float


class Fit(NamedTuple):
    """Constants of one or more tables of a topology file, and how well they fit."""

    constants: Mapping[str, Any]
    errors: tuple[FitError, ...]


def solve(
    off: Callable[[Floats], Floats], start: Sequence[float], low: Sequence[float] | float,
    high: Sequence[float],
) -> Floats:  # fmt: skip
    """The arguments within bounds whose residuals have the least sum of squares."""
    from scipy.optimize import least_squares

    x: Floats = least_squares(off, start, bounds=(low, high), x_scale=np.array(start)).x
    return x


def fit_error(family: str, predicted: Floats, measured: Floats) -> FitError:
    """The row of the error table.

    >>> fit_error("toy", np.array([1.1, 0.9, 2.0]), np.array([1.0, 1.0, 2.0])).max
    0.1
    """
    relative = predicted / measured - 1.0
    size = np.abs(relative)
    worst = (size.mean(), relative.mean(), np.quantile(size, 0.9), size.max())
    return FitError(family, len(measured), *(round(float(e), 4) for e in worst))
