"""What share of the HBM bandwidth do memory-bound kernels reach? Read off measured kernels.

Those of H100, H200 and B200 stand in ``memory_kernels.csv``, each with its source. Rows that say
check are compared and not fitted, and so are those that say other, of other libraries than the one
that is priced. What was not measured on a GPU has the share of another, see ``LIKE``. Sources of
A100's: a Megatron GPT forward on TP 8 (80 GB, fp16, 8,192 tokens, hidden 4096, ffn / 8 = 2048,
51,200 / 8 = 6,400 logits, 32 heads of 2048 × 2048 scores per GPU; kineto traces of astra-sim
24S_HML_FP) and a training step of fp32 with apex's Adam (40 GB, 1,555 GB/s; HTA's trace_diff).

Bytes are tensors read and written once, as the model counts them: a masked softmax
reads and writes its whole square, Adam moves 28 bytes per fp32 parameter, a norm's backward three
tensors. One share per kind: what its kernels should take at full bandwidth over what they took,
less the fixed cost of a launch.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.machine.kernels import MEMORY_KINDS, VARIANTS
from traces.calibration.errors import Fit, FitError, Floats, fit_error

A100_80, A100_40 = 2039e9, 1555e9  # B/s
FIXED = 2e-6  # the small kernels of both traces take 1 to 3 us
X = 8192 * 4096  # elements of the hidden state
LOGITS = 8192 * 6400


class MeasuredKernel(NamedTuple):
    """A kernel: its kind, what it is, bytes moved, seconds (median), the GPU's bandwidth."""

    kind: str
    name: str
    bytes: float
    seconds: float
    bandwidth: float = A100_80


RECORDED = (
    MeasuredKernel("norm", "cuApplyLayerNorm fp16", 4 * X, 136e-6),
    MeasuredKernel("elementwise", "bias + dropout + add, fused by Triton", 6 * X, 114e-6),
    MeasuredKernel("elementwise", "add of two halves", 6 * X, 113e-6),
    MeasuredKernel("elementwise", "bias + gelu, fused by Triton", 4 * 8192 * 2048, 43e-6),
    MeasuredKernel("elementwise", "bias of query, key and value", 4 * 8192 * 1536, 54e-6),
    MeasuredKernel("elementwise", "add fp32", 12 * 124224 * 512, 559.5e-6, A100_40),
    MeasuredKernel("softmax", "scaled_upper_triang_masked_softmax", 4 * 32 * 2048**2, 426e-6),
    MeasuredKernel("embedding", "indexSelectLargeIndex fp16", 4 * X, 410e-6),
    MeasuredKernel("cross_entropy", "logits to fp32", 6 * LOGITS, 263e-6),
    MeasuredKernel("cross_entropy", "maximum", 4 * LOGITS, 154e-6),
    MeasuredKernel("cross_entropy", "less the maximum", 8 * LOGITS, 266e-6),
    MeasuredKernel("cross_entropy", "exponential", 8 * LOGITS, 237e-6),
    MeasuredKernel("cross_entropy", "sum", 4 * LOGITS, 152e-6),
    MeasuredKernel("cross_entropy", "over the sum", 8 * LOGITS, 276e-6),
    MeasuredKernel(
        "optimizer", "Adam fp32, 303 chunks of 65,536", 28 * 303 * 65536, 411e-6, A100_40
    ),
    MeasuredKernel(
        "optimizer", "Adam fp32, 299 chunks of 65,536", 28 * 299 * 65536, 398.5e-6, A100_40
    ),
)
"""Backward kernels are in neither source; they take their kind's share."""

NOMINAL = {"h100": 3352e9, "h200": 4.8e12, "b200": 8e12}  # B/s
LIKE = {"h100": ("h200", "a100"), "h200": ("h100", "a100"), "b200": ("h200", "h100", "a100")}
"""Whose shares a GPU has of kinds that were not measured on it, nearest first."""
TABLE = Path(__file__).with_name("memory_kernels.csv")


def measured(gpu: str, use: str = "fit") -> tuple[MeasuredKernel, ...]:
    """Return the kernels measured on a GPU that are fitted, or with another ``use`` compared."""
    if gpu == "a100":
        return RECORDED if use == "fit" else ()
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["use"]) == (gpu, use)]
    return tuple(
        MeasuredKernel(
            row["kind"],
            row["kernel"],
            float(row["bytes"]),
            1e-6 * float(row["us"]),
            float(row["bandwidth"] or NOMINAL[gpu]),
        )
        for row in rows
    )


def of(gpu: str) -> Fit:
    """Return a share per kind for a GPU; kinds that were not measured on it are borrowed."""
    own = fit(measured(gpu))
    found = {"fixed": FIXED}
    for like in reversed((gpu, *LIKE.get(gpu, ()))):
        found |= fit(measured(like)).constants
    compared = tuple(
        error for use in ("check", "other") for error in _compared(found, measured(gpu, use), use)
    )
    order = ("fixed", *MEMORY_KINDS, *VARIANTS)
    return Fit({kind: found[kind] for kind in order if kind in found}, (*own.errors, *compared))


def fit(recorded: Sequence[MeasuredKernel] = RECORDED, fixed: float = FIXED) -> Fit:
    """Return a share per kind of these kernels."""
    constants, errors = {"fixed": fixed}, []
    for kind, rows in _kinds(recorded).items():
        ideal, seconds = _both(rows)
        share = float(ideal.sum() / (seconds - fixed).sum())
        constants[kind] = min(share, 1.0)
        errors.append(fit_error(kind, ideal / constants[kind] + fixed, seconds))
    return Fit(constants, tuple(errors))


def _compared(
    found: Mapping[str, float], rows: Sequence[MeasuredKernel], use: str
) -> Iterator[FitError]:
    name = {"check": "check, {}: not fitted", "other": "{} of other libraries"}[use]
    for kind, some in _kinds(rows).items():
        ideal, seconds = _both(some)
        predicted = ideal / found[kind] + found["fixed"]
        yield fit_error(name.format(kind), predicted, seconds)


def _kinds(rows: Sequence[MeasuredKernel]) -> dict[str, list[MeasuredKernel]]:
    kinds = dict.fromkeys(row.kind for row in rows)
    return {kind: [row for row in rows if row.kind == kind] for kind in kinds}


def _both(rows: Sequence[MeasuredKernel]) -> tuple[Floats, Floats]:
    """Return the seconds of kernels at full bandwidth, and those measured, shape (rows,) each."""
    ideal = np.array([row.bytes / row.bandwidth for row in rows])
    return ideal, np.array([row.seconds for row in rows])
