"""What does a GPU draw, kind by kind of work? From `record sweep mixture`, by its energy.

In a mixture each kind of work takes its time at the clock that products show, and the power is the
mean over these times: measured where NVML tells it, and else the limit wherever the clock has
fallen. Power is that of :mod:`sim.machine.power`, in shares of rated less idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from sim.machine.assumed import assumed
from traces.calibration.errors import differences, solve
from traces.calibration.load_clock import Fitted, standard_errors
from traces.calibration.load_rows import Mixed, Part

NAMES = ("exponent", "memory", "attention")
LOWEST, HIGHEST = np.array([1.0, 0.01, 0.05]), np.array([5.0, 2.0, 2.0])
FALLEN = 0.985  # a clock below this, a share of boost, says that the power is at its limit


class Board(NamedTuple):
    """What a board may draw, and what its products did: watts, and how they sank."""

    rated: float
    idle: float
    limit: float
    derating: float  # at the limit
    tau: float
    sustained: float | None  # watts of products back to back; None: those of the limit

    def share(self, watts: float) -> float:
        """Return watts as a share of rated less idle."""
        return (watts - self.idle) / (self.rated - self.idle)

    def full(self, exponent: float) -> float:
        """Return the power of products at boost clock."""
        held = 1.0 / (1.0 + self.derating)
        drawn = self.share(self.limit if self.sustained is None else self.sustained)
        floor = assumed("power")["floor"]
        return float(drawn / (held * max(held, floor) ** (exponent - 1.0)))


def weights(board: Board, mixtures: Sequence[Mixed]) -> dict[str, tuple[float, float]]:
    """Return what could be fitted of exponent, memory and attention: values and standard errors."""
    some = [(row, drawn) for row in mixtures if (drawn := _drawn(board, row)) is not None]
    works = {work for row, _ in some for work in row.works}
    asked = [0, *(i for i, name in enumerate(NAMES) if name in works)]
    measured = np.array([drawn for _, drawn in some])
    if not any("tensor" in row.works for row, _ in some) or len(some) < len(asked):
        return {}
    first = np.array([assumed("power")[name] for name in NAMES])

    def off(x: Floats) -> Floats:
        whole = first.copy()
        whole[asked] = x
        drawn: Floats = np.array([_power(board, row, whole) for row, _ in some]) - measured
        return drawn

    start, low, high = (list(of[asked]) for of in (first, LOWEST, HIGHEST))
    x = solve(off, start, low, high, starts=2)
    fitted = Fitted(x, standard_errors(off(x), differences(off, x)))
    return {
        NAMES[i]: (float(value), float(error))
        for i, value, error in zip(asked, fitted.values, fitted.errors, strict=True)
    }


def _drawn(board: Board, row: Mixed) -> float | None:
    """Return the power of a mixture; None where nothing tells it."""
    if row.watts is not None:
        return board.share(row.watts)
    fallen = any(_clock(board, row.works[work]) < FALLEN for work in ("tensor",) if work in
                 row.works)  # fmt: skip
    return board.share(board.limit) if fallen else None


def _clock(board: Board, part: Part) -> float:
    """Return the clock at which a work ran, a share of boost."""
    begun = 1.0 + board.derating * part.burst / (part.burst + board.tau)
    return min(part.alone / begun / part.seconds, 1.0)


def _power(board: Board, row: Mixed, x: Floats) -> float:
    """Return the mean power of a mixture."""
    exponent, memory, attention = x
    floor, full = assumed("power")["floor"], board.full(exponent)
    energy = 0.0
    for work, part in row.works.items():
        if work == "memory":
            energy += memory * part.total
        if work in ("tensor", "attention"):
            c = _clock(board, part)
            weight = attention if work == "attention" else 1.0
            energy += weight * full * max(c, floor) ** (exponent - 1.0) * c * part.total
    return energy / sum(part.total for part in row.works.values())
