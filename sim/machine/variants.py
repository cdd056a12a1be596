"""The prices of a graph if an assumed value lay at an end of its range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim.graph import Compute, Work
from sim.machine.assumed import assuming, ranges
from sim.machine.attention_ranges import with_attention
from sim.machine.cluster import Gpu
from sim.machine.hardware import Machine
from sim.machine.kernels import compute_seconds
from sim.machine.power import limited
from sim.machine.spread import slowed


class Ends(NamedTuple):
    """The machine with an assumed value at both ends of its range."""

    name: str
    low: Machine
    high: Machine


def ends(machine: Machine, gpu: Gpu, works: Sequence[Work]) -> list[Ends]:
    """Return both ends of every assumed value that moves a price of these works."""
    out = []
    for name, of in ranges().items():
        low, high = (variant(machine, gpu, works, name, value) for value in (of.low, of.high))
        if low is not machine or high is not machine:
            out.append(Ends(name, low, high))
    return out


def variant(machine: Machine, gpu: Gpu, works: Sequence[Work], name: str, value: float) -> Machine:
    """Return the machine with one assumed value changed; itself where that moves no price."""
    section, _, key = name.partition(".")
    if (section == "power" or name == "gpu.idle") and machine.limits is not None:
        with assuming(name, value):
            return limited(machine, gpu, works)
    if name == "gpu.spread" and machine.slowest > 1.0 and gpu.spread == ranges()[name].value:
        return slowed(machine, works, _slowest(machine, value / gpu.spread))
    if name == "communication.contention" and _is_assumed(machine, gpu):
        return replace(machine, contention=value)
    if name == "kernels.norm":
        return _norms(machine, works, value / ranges()[name].value)
    if section == "attention":
        other = with_attention(gpu, key, value, ranges()[name].value)
        return machine if other is gpu else _attention(machine, other, works)
    return machine


def _is_assumed(machine: Machine, gpu: Gpu) -> bool:
    """Return whether arithmetic loses speed beside communication, and by how much is assumed."""
    stated = "contention" in gpu.costs.get("communication", {})
    return bool((machine.hbm > 0.0).any()) and not stated


def _slowest(machine: Machine, times: float) -> float:
    """Return the factor on tensor work if GPUs differed so many times as much."""
    return (1.0 + (machine.slowest - 1.0) * times) / machine.slowest


def _norms(machine: Machine, works: Sequence[Work], times: float) -> Machine:
    """Return the machine whose norms take so many times as long; itself where there are none."""
    norms = np.array([isinstance(work, Compute) and work.kind == "norm" for work in works])
    if not norms.any():
        return machine
    factor = np.where(norms, times, 1.0)
    traffic = None if machine.traffic is None else machine.traffic * factor
    return replace(machine, memory=machine.memory * factor, traffic=traffic)


def _attention(machine: Machine, gpu: Gpu, works: Sequence[Work]) -> Machine:
    """Return the machine whose kernels of attention take what they take on ``gpu``."""
    arithmetic = machine.arithmetic.copy()
    for row, work in enumerate(works):
        if isinstance(work, Compute) and work.kind.startswith("attention"):
            arithmetic[row] = compute_seconds(gpu, work)[0] * machine.slowest
    if (arithmetic == machine.arithmetic).all():
        return machine
    longer = np.divide(
        arithmetic, machine.arithmetic, out=np.ones_like(arithmetic), where=machine.arithmetic > 0
    )
    tensor = None if machine.tensor is None else machine.tensor * longer
    return replace(machine, arithmetic=arithmetic, tensor=tensor)
