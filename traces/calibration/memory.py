"""What share of the HBM bandwidth do memory-bound kernels reach? Read off measured kernels.

They stand in ``memory_kernels.csv``, each with its source. Rows that say check are compared and not
fitted, and so are those that say other, of other libraries than the one that is priced. What was
not measured on a GPU has the share of another, see ``LIKE``. A100's are of a forward of hidden size
4,096 in fp16, with ffn / 8 = 2,048, 51,200 / 8 = 6,400 logits, and 32 heads of 2048 × 2048 scores;
neither of their sources has backward kernels, which take their kind's share.

Bytes are tensors read and written once, as the model counts them: a masked softmax
reads and writes its whole square, Adam moves 28 bytes per fp32 parameter, a norm's backward three
tensors. One share per kind: what its kernels should take at full bandwidth over what they took,
less the fixed cost of a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Floats
from sim.machine.kernels import MEMORY_KINDS, VARIANTS
from traces.calibration import published
from traces.calibration.errors import Fit, FitError, fit_error

FIXED = 2e-6  # the small kernels of A100's traces take 1 to 3 us


class MeasuredKernel(NamedTuple):
    """A kernel: its kind, what it is, bytes moved, seconds (median), the GPU's bandwidth."""

    kind: str
    name: str
    bytes: float
    seconds: float
    bandwidth: float


NOMINAL = {"a100": 2039e9, "h100": 3352e9, "h200": 4.8e12, "b200": 8e12}  # B/s
LIKE = {"h100": ("h200", "a100"), "h200": ("h100", "a100"), "b200": ("h200", "h100", "a100")}
"""Whose shares a GPU has of kinds that were not measured on it, nearest first."""


def measured(gpu: str, use: str = "fit") -> tuple[MeasuredKernel, ...]:
    """Return the kernels measured on a GPU that are fitted, or with another ``use`` compared."""
    return tuple(
        MeasuredKernel(
            row["kind"], row["kernel"], float(row["bytes"]), 1e-6 * float(row["us"]),
            float(row["bandwidth"] or NOMINAL[gpu]),
        )
        for row in published.rows("memory_kernels")
        if (row["gpu"], row["use"]) == (gpu, use)
    )  # fmt: skip


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


def fit(recorded: Sequence[MeasuredKernel], fixed: float = FIXED) -> Fit:
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
