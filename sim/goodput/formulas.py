"""The interval between checkpoints, and the time of a run with failures, in closed form.

Failures come at random with a mean time between them, whatever the job does, and each takes a fixed
time to recover from, in which others may come.
"""

from __future__ import annotations

from math import exp, expm1, inf, sqrt

from sim.goodput.pace import Costs, Pace

MOST = 50.0
"""The most mean times between failures that are looked at as an interval; e^50 repeats save it."""

LATEST = 700.0
"""Mean times between failures until a checkpoint is safe from which on it never will be: e^700 is
nearly the largest number."""


def young(stall: float, mtbf: float) -> float:
    """Return the seconds of work between checkpoints of ``stall`` seconds by Young (1974).

    Communications of the ACM 17 (9), 530; good where checkpoints are far shorter than ``mtbf``.

    >>> young(stall=60.0, mtbf=12_000.0)
    1200.0
    """
    return sqrt(2.0 * stall * mtbf) if stall else 0.0


def daly(stall: float, mtbf: float) -> float:
    """Return the seconds of work between checkpoints of ``stall`` seconds by Daly (2006).

    Future Generation Computer Systems 22 (3), 303, equation 37.

    >>> round(daly(stall=60.0, mtbf=12_000.0), 2)
    1160.33
    """
    if stall >= 2.0 * mtbf:
        return mtbf
    x = sqrt(stall / (2.0 * mtbf))
    return young(stall, mtbf) * (1.0 + x / 3.0 + x * x / 9.0) - stall if stall else 0.0


def expected(pace: Pace, mtbf: float, recovery: float) -> float:
    """Return the expected seconds of a run that is long against its intervals.

    Where a checkpoint is safe when steps go on (settle 0), it is that of Daly (2006),
    M e^(R/M) (e^((t+d)/M) - 1) T/t. Elsewhere the argument is the same: a failure comes after a
    time X, and the j-th checkpoint is safe if X is longer than a first cycle, j - 1 more and
    settle. So exp(-(first + settle) / M) / (1 - exp(-cycle / M)) are expected to become safe in
    M e^(R/M).
    """
    each, _ = _saved(pace, mtbf)
    restarts = exp(recovery / mtbf) if mtbf < inf else 1.0
    return each * restarts * pace.steps / pace.interval


def _saved(pace: Pace, mtbf: float) -> tuple[float, float]:
    """Return the expected seconds for each safe checkpoint without recoveries, and the work."""
    work, costs = pace.interval * pace.step, pace.costs
    cycle = work + costs.stall + pace.wait(work)
    if mtbf == inf:
        return cycle, work
    late = work + costs.stall + costs.settle
    if late > LATEST * mtbf:
        return inf, work
    return -mtbf * expm1(-cycle / mtbf) * exp(late / mtbf), work


def best(steps: int, step: float, costs: Costs, mtbf: float) -> int:
    """Return the steps between checkpoints with the least expected time.

    The expected time falls and then rises with the interval, so the range is cut in three.
    """
    low, high = 1, steps
    if mtbf < inf:
        high = max(1, int(min(steps, MOST * mtbf / step)))

    def cost(interval: int) -> float:
        each, work = _saved(Pace(steps, step, interval, costs), mtbf)
        return each / work

    while high - low > 2:
        third = (high - low) // 3
        a, b = low + third, high - third
        if cost(a) <= cost(b):
            high = b
        else:
            low = a
    return min(range(low, high + 1), key=cost)
