"""Constants of a GPU under load, and how far each is from the topology's: ``calibrate --recorded``.

:mod:`traces.record.load` says what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim.machine.assumed import assumed, ranges
from sim.machine.cluster import Gpu
from sim.machine.kernels import gemm_constants
from sim.machine.power import held, terms
from traces.calibration import load_clock, load_overlap, load_power
from traces.calibration.load_clock import Fitted
from traces.calibration.load_power import Board
from traces.calibration.load_rows import Load, Sustained

SAME = 0.02  # watts that differ by a smaller share are the same


class Constant(NamedTuple):
    """A constant: measured, its standard error, and what the topology has or is assumed."""

    name: str
    measured: float
    error: float | None
    topology: float | None
    assumed: tuple[float, float] | None = None  # range, where the topology's is assumed

    @property
    def difference(self) -> float | None:
        """How far the measured one is from the topology's, as a share of that."""
        return self.measured / self.topology - 1.0 if self.topology else None


class UnderLoad(NamedTuple):
    """Constants with their comparison, tables for the topology file, and what lacks and why."""

    constants: list[Constant]
    tables: dict[str, dict[str, Any]]
    missing: list[str]

    def add(self, name: str, found: Fitted, at: int, topology: float, section: str = "") -> None:
        """Add a fitted constant; ``section`` names it in assumed.toml if that is where it is."""
        values, errors = found
        band = ranges()[section][1:] if section else None
        self.constants.append(
            Constant(name, float(values[at]), float(errors[at]), float(topology), band)
        )


def fit(gpu: Gpu, load: Load) -> UnderLoad:
    """Fit what was measured, and compare it with the GPU's own constants."""
    out = UnderLoad([], {}, [])
    runs = [run for run in load.sustained if run.data == "random"]
    if runs:
        found = load_clock.derating(runs)
        board = _board(gpu, load, runs, found)
        _clock(out, gpu, board, found, load_clock.over_zeros(load.sustained))
        exponent = _power(out, gpu, load, board)
        out.tables["gemm.bf16"] = {"derating": _at_rated(board, exponent)}
        if found.values[0] >= load_clock.FALLS:
            out.tables["gemm.bf16"]["derating_seconds"] = float(found.values[1])
        _spread(out, gpu, runs)
    if load.beside:
        _contention(out, gpu, load)
    return out


def _board(gpu: Gpu, load: Load, runs: Sequence[Sustained], found: Fitted) -> Board:
    """Return what the board may draw: as NVML tells it, else as the topology has it."""
    table = gpu.costs.get("power", {})
    waiting = [row.watts for row in load.mixed if {*row.works} == {"wait"}]
    limit = _mean([run.limit for run in runs]) or table.get("cap", 1.0)
    idle = _mean(waiting) or table.get("idle", 0.0)
    derating, tau = map(float, found.values)
    return Board(
        table.get("rated", limit), idle, limit, derating, tau, _mean([run.watts for run in runs])
    )


def _clock(out: UnderLoad, gpu: Gpu, board: Board, found: Fitted, zeros: float | None) -> None:
    """Add derating and its seconds, beside what the topology expects at this board's limit."""
    known, table = gemm_constants(gpu, "bf16"), gpu.costs.get("power")
    expected = known.derating
    if table:
        power = {**table, "cap": min(board.limit, table["rated"])}
        here = replace(gpu, costs={**gpu.costs, "power": power})
        expected = 1.0 / held(here, known.derating) - 1.0
    out.add("derating", found, 0, expected)
    if found.values[0] >= load_clock.FALLS:
        out.add("derating_seconds, s", found, 1, known.derating_seconds)
    else:
        out.missing.append("derating_seconds: the clock does not fall")
    if zeros is not None:
        out.constants.append(Constant("random data over zeros, steady", zeros, None, expected))


def _at_rated(board: Board, exponent: float) -> float:
    """Return the derating at rated power, which is a topology's, from that at a lower limit."""
    if abs(board.limit / board.rated - 1.0) < SAME:
        return board.derating
    return float(board.full(exponent) ** (1.0 / exponent)) - 1.0


def _power(out: UnderLoad, gpu: Gpu, load: Load, board: Board) -> float:
    """Add what was told of the board, exponent and weights; return the exponent."""
    table, known = gpu.costs.get("power", {}), terms(gpu)
    if any(row.watts is not None for row in load.mixed):
        out.constants.append(Constant("idle power, W", board.idle, None, table.get("idle")))
        out.constants.append(Constant("power limit, W", board.limit, None, table.get("cap")))
        out.tables["power"] = {"rated": board.rated, "cap": board.limit, "idle": board.idle}
    found = load_power.weights(board, load.mixed) if load.mixed else {}
    for name, (value, error) in found.items():
        one = Fitted(np.array([value]), np.array([error]))
        out.add(NAMED[name], one, 0, known[name], "" if name in table else f"power.{name}")
        if table or "power" in out.tables:
            out.tables.setdefault("power", {})[name] = value
    lacking = [NAMED[name] for name in load_power.NAMES if name not in found]
    if lacking:
        out.missing.append(
            f"{', '.join(lacking)}: record sweep sustain mixture measures them, best with NVML"
        )
    return found["exponent"][0] if found else known["exponent"]


NAMED = {
    "exponent": "exponent of power over clock",
    "memory": "power of memory-bound kernels, of rated less idle",
    "attention": "power of attention, of products'",
}


def _spread(out: UnderLoad, gpu: Gpu, runs: Sequence[Sustained]) -> None:
    found = load_clock.spread(runs)
    if found is None:
        out.missing.append("spread: record sweep sustain --ranks N measures it on N GPUs at once")
        return
    own = "" if gpu.spread != assumed("gpu")["spread"] else "gpu.spread"
    out.add("spread, sigma of the GPUs' speeds", found, 0, gpu.spread, own)
    out.tables[""] = {"spread": float(found.values[0])}


def _contention(out: UnderLoad, gpu: Gpu, load: Load) -> None:
    found = load_overlap.contention(gpu, load.beside)
    if found is None:
        out.missing.append(
            "contention: no transfer took enough memory bandwidth; record sweep overlap --ranks 2 "
            "measures it beside NCCL and copies between GPUs"
        )
        return
    known = assumed("communication")["contention"]
    own = float(gpu.costs.get("communication", {}).get("contention", known))
    section = "communication.contention" if own == known else ""
    out.add("contention, beside communication", found, 0, own, section)
    out.tables["communication"] = {"contention": min(max(float(found.values[0]), 0.0), 1.0)}


def _mean(some: Sequence[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [one for one in some if one is not None]
    return float(np.mean(known)) if known else None
