"""How fast may a GPU run on its power? Clocks from the energy of what it runs.

With clock c (a share of the boost clock) the power of a GPU is

    idle + tensor · max(c, floor)^(exponent − 1) · c + memory

where ``tensor`` and ``memory`` are the power of arithmetic and of memory traffic at boost clock.
Voltage falls with the clock down to a floor; below it power falls with the clock alone. Products
that run back to back sink to 1 / (1 + derating) of the boost clock at the board's rated power: that
is measured (``traincast calibrate``) and gives ``tensor`` for a product, as long as its arithmetic
takes. So what a topology states is the rated power, the cap and the idle power, in watts; and here
all powers are shares of rated less idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sim.graph import Compute, Floats, Work
from sim.machine.assumed import assumed
from sim.machine.cluster import Gpu
from sim.machine.hardware import Limits, Machine
from sim.machine.kernels import MEMORY_KINDS, gemm_constants

HALVINGS = 30
GRID = 0.5**HALVINGS  # clocks are multiples of it
NEWTON = 5
SURE = 1e-13  # powers of two clocks differ by more than their rounding
LOWEST = 1e-6  # a clock below which none is simulated, however little its cap leaves


def limited(machine: Machine, gpu: Gpu, works: Sequence[Work]) -> Machine:
    """Return the machine with what its GPU's power allows; the same where no limit is known."""
    limits = limits_of(gpu)
    if limits is None:
        return machine
    share = np.array([_shares(gpu, work) for work in works], np.float64).reshape(-1, 2)
    tensor, traffic = machine.arithmetic * share[:, 0], machine.memory * share[:, 1]
    return replace(machine, limits=limits, tensor=tensor, traffic=traffic)


def limits_of(gpu: Gpu) -> Limits | None:
    """Return what a GPU's power allows; None where its topology has no table [gpu.power]."""
    table, of = gpu.costs.get("power"), terms(gpu)
    if not table:
        return None
    idle = table["idle"] * assumed("gpu")["idle"]
    return Limits(
        power=(table["cap"] - idle) / (table["rated"] - idle),
        window=gemm_constants(gpu, "bf16").derating_seconds,
        exponent=of["exponent"],
        floor=of["floor"],
    )


def terms(gpu: Gpu) -> Mapping[str, float]:
    """Return exponent, floor, and powers of memory and attention: the topology's, else assumed."""
    own = gpu.costs.get("power", {})
    return {name: own.get(name, value) for name, value in assumed("power").items()}


def held(gpu: Gpu, derating: float) -> float:
    """Return the clock, a share of boost, of products of this derating that never pause."""
    of = limits_of(gpu)
    if of is None:
        return 1.0
    tensor = np.array([_full(derating, of.exponent, of.floor)])
    return float(clock(of, tensor, np.zeros(1), np.ones(1))[0])


def _full(derating: float, exponent: float, floor: float) -> float:
    """Return the power of products at boost clock: at 1 / (1 + derating) of it they take 1."""
    held_at = 1.0 / (1.0 + derating)
    return 1.0 / (held_at * float(max(held_at, floor) ** (exponent - 1.0)))


def clock(limits: Limits, tensor: Floats, memory: Floats, busy: Floats) -> Floats:
    """Return the clock, a share of boost, at which each window's mean power is the limit.

    ``tensor`` and ``memory`` are powers at boost clock, averaged over windows, and ``busy`` the
    share of a window in which arithmetic runs: as that takes longer, so does the window's work.
    Memory traffic draws at most the limit, so that arithmetic never stops for it.
    """
    memory = np.minimum(memory, limits.power)
    out = np.ones_like(tensor)
    over = tensor + memory > limits.power
    tensor, memory, busy = tensor[over], memory[over], busy[over]
    low = _guess(limits, tensor, memory, busy)
    high = low + GRID
    below = _drawn(limits, tensor, memory, busy, low)
    above = _drawn(limits, tensor, memory, busy, high)
    found = (below <= limits.power) & (above > limits.power) & (above - below > SURE)
    rest = np.flatnonzero(~found)
    low[rest] = _halved(limits, tensor[rest], memory[rest], busy[rest])
    out[over] = np.maximum(low, LOWEST)
    return out


def _drawn(limits: Limits, tensor: Floats, memory: Floats, busy: Floats, c: Floats) -> Floats:
    """Return the mean power at clock ``c``."""
    pace = 1.0 + busy * (1.0 / c - 1.0)
    power = tensor * np.maximum(c, limits.floor) ** (limits.exponent - 1.0) + memory
    drawn: Floats = power / pace
    return drawn


def _halved(limits: Limits, tensor: Floats, memory: Floats, busy: Floats) -> Floats:
    """Return the highest clock on the grid that draws no more than the limit, by halving."""
    low, high = np.zeros_like(tensor), np.ones_like(tensor)
    for _ in range(HALVINGS):
        c = (low + high) / 2.0
        fits = _drawn(limits, tensor, memory, busy, c) <= limits.power
        low, high = np.where(fits, (c, high), (low, c))
    return low


def _guess(limits: Limits, tensor: Floats, memory: Floats, busy: Floats) -> Floats:
    """Return what halving is likely to find, by Newton's method above the floor, exact below it."""
    power, slope = limits.power, limits.exponent - 1.0
    spare, c = memory - power * (1.0 - busy), np.ones_like(tensor)
    for _ in range(NEWTON):
        rising = tensor * c**slope
        gap = rising + spare - power * busy / c
        c -= gap / (rising * slope / c + power * busy / c**2)
        c = c.clip(GRID, 1.0)
    need = tensor * limits.floor**slope + spare
    c = np.where(c < limits.floor, power * busy / np.maximum(need, GRID), c)
    return np.floor(c.clip(GRID, 1.0 - GRID) / GRID) * GRID


def _shares(gpu: Gpu, work: Work) -> tuple[float, float]:
    """Return the power of a work's arithmetic and of its memory traffic while each lasts."""
    of = terms(gpu)
    if not isinstance(work, Compute):
        return 0.0, 0.0
    if work.kind in MEMORY_KINDS:
        return 0.0, of["memory"]
    full = _full(gemm_constants(gpu, work.dtype).derating, of["exponent"], of["floor"])
    return (of["attention"] if work.kind.startswith("attention") else 1.0) * full, 0.0
