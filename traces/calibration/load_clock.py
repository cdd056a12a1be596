"""How far, and how soon, does a GPU's clock fall under products? From `record sweep sustain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from traces.calibration.errors import differences, solve
from traces.calibration.load_rows import Sustained

NEXT = 1.04  # a mark counts whose launches are so many times those of the last: early ones weigh
LEAST = 20  # such marks of a run
FALLS = 0.01  # a derating below this does not tell in how many seconds it comes
FIRST = (0.15, 0.05)  # where the search for derating and its seconds begins
HIGHEST = (2.0, 5.0)


class Fitted(NamedTuple):
    """Values and their standard errors, in the order of what was asked for."""

    values: Floats
    errors: Floats


def derating(runs: Sequence[Sustained]) -> Fitted:
    """Return derating and derating_seconds, as products back to back of random data show them.

    A burst of b seconds takes 1 + derating b / (b + derating_seconds) times as long as at boost
    clock; every run has its own seconds of a product there.
    """
    some = [_marks(run) for run in runs]

    def off(x: Floats) -> Floats:
        return np.concatenate([_off(x, launches, seconds) for launches, seconds in some])

    x = solve(off, FIRST, (1e-6, 1e-4), HIGHEST, starts=4)
    return Fitted(x, standard_errors(off(x), differences(off, x), len(some)))


def standard_errors(off: Floats, slopes: Floats, more: int = 0) -> Floats:
    """Return the errors of fitted arguments from the residuals and their slopes by each.

    ``more`` is how many arguments were fitted besides.
    """
    free = max(len(off) - slopes.shape[1] - more, 1)
    spread: Floats = np.sqrt(np.diag(np.linalg.pinv(slopes.T @ slopes)) * (off @ off) / free)
    return spread


def steady(run: Sustained) -> float:
    """Return products per second in the second half of a run."""
    half = int(np.searchsorted(run.seconds, run.seconds[-1] / 2))
    half = min(half, len(run.seconds) - 2)
    done, took = run.launches[-1] - run.launches[half], run.seconds[-1] - run.seconds[half]
    return float(done / took)


def spread(runs: Sequence[Sustained]) -> Fitted | None:
    """Return sigma of the GPUs' speeds, which is that of their logarithms; None for one GPU."""
    by: dict[str, list[float]] = {}
    for run in runs:
        by.setdefault(run.shape, []).append(np.log(steady(run)))
    ranks = max(map(len, by.values()), default=0)
    if ranks < 2:
        return None
    sigma = np.sqrt(np.mean([np.var(some, ddof=1) for some in by.values() if len(some) > 1]))
    return Fitted(np.array([sigma]), np.array([sigma / np.sqrt(2.0 * (ranks - 1))]))


def over_zeros(runs: Sequence[Sustained]) -> float | None:
    """Return by how much, as a share, random data take longer than zeros once the clock is steady.

    It is the mean over shapes and ranks that have both; None where none has.
    """
    speeds = {(run.shape, run.rank, run.data): steady(run) for run in runs}
    ratios = [
        speeds[shape, rank, "zeros"] / speed
        for (shape, rank, data), speed in speeds.items()
        if data == "random" and (shape, rank, "zeros") in speeds
    ]
    return float(np.mean(ratios)) - 1.0 if ratios else None


def _marks(run: Sustained) -> tuple[Floats, Floats]:
    """Return launches and seconds at marks that are apart."""
    kept = [0]
    for i, launches in enumerate(run.launches):
        if launches >= NEXT * run.launches[kept[-1]]:
            kept.append(i)
    return run.launches[kept], run.seconds[kept]


def _off(x: Floats, launches: Floats, seconds: Floats) -> Floats:
    """Return relative errors of the launches between marks."""
    fall, tau = x
    done = seconds / (1.0 + fall * seconds / (seconds + tau))
    ratio = np.log(np.diff(done) / np.diff(launches))
    off: Floats = ratio - ratio.mean()
    return off
