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
from numpy.typing import NDArray

from sim.graph import Compute, Work
from sim.machine.assumed import assumed
from sim.machine.hardware import Limits, Machine
from sim.machine.kernels import MEMORY_KINDS, GpuLike, gemm_constants

Floats = NDArray[np.float64]
HALVINGS = 30
LOWEST = 1e-6  # a clock below which none is simulated, however little its cap leaves


def limited(machine: Machine, gpu: GpuLike, works: Sequence[Work]) -> Machine:
    """Return the machine with what its GPU's power allows; the same where no limit is known."""
    limits = limits_of(gpu)
    if limits is None:
        return machine
    share = np.array([_shares(gpu, work) for work in works], np.float64).reshape(-1, 2)
    tensor, traffic = machine.arithmetic * share[:, 0], machine.memory * share[:, 1]
    return replace(machine, limits=limits, tensor=tensor, traffic=traffic)


def limits_of(gpu: GpuLike) -> Limits | None:
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


def terms(gpu: GpuLike) -> Mapping[str, float]:
    """Return exponent, floor, and powers of memory and attention: the topology's, else assumed."""
    own = gpu.costs.get("power", {})
    return {name: own.get(name, value) for name, value in assumed("power").items()}


def held(gpu: GpuLike, derating: float) -> float:
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
    low, high = np.zeros_like(tensor), np.ones_like(tensor)
    for _ in range(HALVINGS):
        c = (low + high) / 2.0
        pace = 1.0 + busy * (1.0 / c - 1.0)
        drawn = (tensor * np.maximum(c, limits.floor) ** (limits.exponent - 1.0) + memory) / pace
        low, high = np.where(drawn <= limits.power, (c, high), (low, c))
    out[over] = np.maximum(low, LOWEST)
    return out


def _shares(gpu: GpuLike, work: Work) -> tuple[float, float]:
    """Return the power of a work's arithmetic and of its memory traffic while each lasts."""
    of = terms(gpu)
    if not isinstance(work, Compute):
        return 0.0, 0.0
    if work.kind in MEMORY_KINDS:
        return 0.0, of["memory"]
    full = _full(gemm_constants(gpu, work.dtype).derating, of["exponent"], of["floor"])
    return (of["attention"] if work.kind.startswith("attention") else 1.0) * full, 0.0
