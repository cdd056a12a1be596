"""Fits constants of a GPU to what `traincast record` measured: ``calibrate GPU --recorded``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.machine import cluster, topology
from sim.machine.attention_tables import AttentionConstants, Shares, attention_constants
from sim.machine.cluster import Gpu
from sim.machine.kernels import MEMORY_KINDS, compute_seconds, gemm_constants, table
from traces.calibration import attention, gemm, load_rows, memory, recorded, under_load
from traces.calibration.calibrate import KINDS, Calibration
from traces.calibration.errors import Fit, FitError, fit_error
from traces.calibration.recorded import Sweep
from traces.calibration.tables import GemmRows

LEAST = 20  # so many products of training's sizes are needed to fit ten constants
MODEL = re.compile(r"\b[A-Z]*\d{2,4}[A-Z]?\b")
"""The kind of a GPU in its name: H100, L40S, MI300X, 4090."""
BEFORE = "check, constants of the topology: "


def calibrate(name: str, path: Path) -> Calibration:
    """Fit what was measured often enough, and compare the topology's own constants with it.

    ``name`` is a kind of GPU (h200), a topology, or a topology file; peak and bandwidth are taken
    from there. Raises InputError where nothing can be fitted.
    """
    sweep, like = recorded.read(path), KINDS[name].topology if name in KINDS else name
    gpu = cluster.load(like, 1).gpu
    _same(path, sweep.gpu, gpu.name)
    loaded = load_rows.rows(path, sweep.parts)
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            found = _fitted(name, gpu, sweep, loaded)
    except ArithmeticError:
        raise InputError(f"{path} is damaged: no GPU takes such times; record it again") from None
    if found is None:
        raise InputError(
            f"{path} has too few kernels to fit constants to; record sweep gemm attention "
            "elementwise launch measures them, and record sweep sustain mixture overlap the clock"
        )
    _possible(path, like, found)
    return found


def _fitted(name: str, gpu: Gpu, sweep: Sweep, loaded: load_rows.Load) -> Calibration | None:
    """Return what can be fitted; None where nothing can."""
    before = recorded.errors(recorded.pairs(gpu, sweep), BEFORE)
    fits = {key: fit for key, fit in _fits(gpu, sweep).items() if fit}
    load = under_load.fit(gpu, loaded)
    if not fits and not load.constants:
        return None
    constants = {key: fit.constants for key, fit in fits.items()}
    for key, values in load.tables.items():
        own = gemm_constants(gpu, "bf16")._asdict() if key == "gemm.bf16" else {}
        constants[key] = {**constants.get(key, own), **values}
    source = f"traincast calibrate {name} --recorded; {sweep.command}, {sweep.gpu}, {sweep.torch}"
    source = source.encode("utf-8", "replace").decode()  # JSON may have halves of characters
    tables = {key: {**values, "source": source} for key, values in constants.items()}
    errors = [error for fit in fits.values() for error in fit.errors]
    return Calibration(name, tables, {}, (*errors, *before), load if load.constants else None)


def _possible(path: Path, like: str, found: Calibration) -> None:
    """Raise InputError for constants that a topology file cannot have."""
    try:
        topology.read(like, tomllib.loads(found.toml()))
    except InputError as error:
        raise InputError(f"{path} is damaged, or of another GPU: fitted to it, {error}") from None


def _same(path: Path, recorded_on: str, known: str) -> None:
    """Raise InputError where both names of a GPU say a kind, and not the same."""
    kinds = [found[0] if (found := MODEL.search(name)) else None for name in (recorded_on, known)]
    if None not in kinds and kinds[0] != kinds[1]:
        raise InputError(
            f"{path} was recorded on {recorded_on}, and the topology's GPU is {known}; name a "
            "topology of that GPU"
        )


def _fits(gpu: Gpu, sweep: Sweep) -> Mapping[str, Fit | None]:
    return {
        "gemm.bf16": _gemm(gpu, sweep),
        "attention": _attention(gpu, sweep),
        "memory_kernels": _memory(gpu, sweep),
    }


def _gemm(gpu: Gpu, sweep: Sweep) -> Fit | None:
    products = [row for row in sweep.parts.get("gemm", ()) if row["dtype"] == "bfloat16"]
    if not products:
        return None
    m, n, k, seconds = np.array([[row[key] for key in ("m", "n", "k", "s")] for row in products]).T
    rows = GemmRows(m, n, k, seconds, np.zeros_like(m), np.zeros_like(m))
    if len(gemm.training_sized(rows).m) < LEAST or not ((m >= 16) & (m <= 64)).any():
        return None
    fit = gemm.fit(gpu, "bf16", rows)
    known = gemm_constants(gpu, "bf16")  # a sweep's bursts are too short for clocks to fall
    kept = {name: getattr(known, name) for name in ("derating", "derating_seconds")}
    return Fit({**fit.constants, **kept}, fit.errors[:1])  # others: of frameworks, of other GPUs


def _attention(gpu: Gpu, sweep: Sweep) -> Fit | None:
    """Fit forward and keys to causal rows of head dimension 128, then backward's share.

    They are those of PyTorch's kernel, which then stands for all.
    """
    rows = [
        row
        for row in sweep.parts.get("attention", ())
        if row["causal"] and row["dim"] == 128 and row["dtype"] == "bfloat16"
    ]
    forward = [row for row in rows if row["what"] == "forward"]
    if len(forward) < 3 or len(rows) == len(forward):
        return None
    heads, s, seconds = np.array(
        [[row["batch"] * row["heads"], row["sequence"], row["s"]] for row in forward], np.float64
    ).T
    like = attention_constants(table(gpu, "attention"), "sdpa")
    fit = attention.fit_prefill(gpu, like, heads, s, seconds)
    found = attention_constants(fit.constants, "sdpa")
    backward = [row for row in rows if row["what"] == "backward"]
    shares, error = _backward(gpu, found, backward)
    return Fit(attention.to_table(found._replace(backward=shares)), (*fit.errors, error))


def _backward(gpu: Gpu, found: AttentionConstants, rows: list[Any]) -> tuple[Shares, FitError]:
    """Return the shares of the peak at which the median backward takes its measured time."""
    measured = np.array([row["s"] for row in rows])
    like = _with(gpu, found)
    alone = np.array([compute_seconds(like, recorded.attention(row))[0] for row in rows])
    factor = float(np.median(alone / (measured - found.fixed)))
    shares = tuple((dim, min(share * factor, 1.0)) for dim, share in found.backward)
    predicted = alone / factor + found.fixed
    return shares, fit_error("attention, backward", predicted, measured)


def _with(gpu: Gpu, found: AttentionConstants) -> Gpu:
    """Return the GPU with these constants of attention."""
    from dataclasses import replace

    return replace(gpu, costs={**gpu.costs, "attention": attention.to_table(found)})


def _memory(gpu: Gpu, sweep: Sweep) -> Fit | None:
    """Fit shares of the bandwidth; the fixed cost of every kernel is the time of a small one."""
    rows = [
        memory.MeasuredKernel(
            row["kind"], row["name"], row["bytes"], row["s"], gpu.memory_bandwidth
        )
        for row in sweep.parts.get("elementwise", ())
    ]
    if {row.kind for row in rows} != {*MEMORY_KINDS}:
        return None
    small = [row["s"] for row in sweep.parts.get("launch", ()) if row["what"] == "kernel"]
    return memory.fit(rows, small[0] if small else memory.FIXED)
