"""The slowest of several GPUs: like GPUs sustain different speeds, and the slowest holds up all.

Chips of one kind need different power at the same clock, so under load they hold different clocks.
Here the time of a GPU's tensor work has a factor of its own, the same in all its kernels: a
log-normal one with mean 1 and sigma ``gpu.spread``. What is limited by memory has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from sim.graph import Bools, Compute, Floats, Work
from sim.machine.hardware import Machine
from sim.machine.kernels import MEMORY_KINDS

REACH, POINTS = 8.0, 6401
"""Standard deviations on each side over which is integrated, and in how many points."""


def expected(sigma: float, count: int, parts: Sequence[tuple[float, float]] = ((1, 0),)) -> float:
    """Return the factor that the slowest of several GPUs is expected to have on its tensor work.

    ``parts`` has seconds of (tensor work, other kernels) for each of several groups of ``count``
    GPUs. That one is the slowest which takes longest for both; the factor is the one with which
    each of like GPUs would take as long as that one. Groups without tensor work have no slowest.

    >>> round(expected(0.02, 1), 6), round(expected(0.02, 2), 6)  # 2 Phi(sigma / sqrt 2)
    (1.0, 1.011283)
    """
    parts = [part for part in parts if part[0] > 0.0 < sigma]
    if not parts:
        return 1.0
    z, below = _normal()
    factor = np.exp(sigma * z - sigma**2 / 2)
    seconds = np.max([tensor * factor + other for tensor, other in parts], axis=0)
    share = np.ones(len(z))
    for tensor, other in parts:
        within = np.maximum((seconds - other) / tensor, np.finfo(np.float64).tiny)
        share *= np.interp((np.log(within) + sigma**2 / 2) / sigma, z, below) ** count
    return float(factor[0] + (1.0 - (share[1:] + share[:-1]) / 2.0) @ np.diff(factor))


def slowed(machine: Machine, works: Sequence[Work], factor: float) -> Machine:
    """Return the machine on which tensor work takes ``factor`` times as long, at the same power."""
    times = np.where(tensor_works(works), factor, 1.0)
    tensor = None if machine.tensor is None else machine.tensor * times
    whole = machine.slowest * factor
    return replace(machine, arithmetic=machine.arithmetic * times, tensor=tensor, slowest=whole)


def tensor_works(works: Sequence[Work]) -> Bools:
    """Return a flag per work: it is done by tensor cores (products and attention)."""
    return np.array(
        [isinstance(work, Compute) and work.kind not in MEMORY_KINDS for work in works], np.bool_
    )


@cache
def _normal() -> tuple[Floats, Floats]:
    """Return standard deviations, and the share of a normal distribution below each."""
    z = np.linspace(-REACH, REACH, POINTS)
    return z, np.array([math.erfc(-at / math.sqrt(2.0)) / 2.0 for at in z.tolist()])
