"""What share of the HBM bandwidth do memory-bound kernels reach? Read off recorded kernels.

Sources, both on A100: a Megatron GPT forward on TP 8 (80 GB, fp16, 8,192 tokens, hidden 4096,
ffn / 8 = 2048, 51,200 / 8 = 6,400 logits, 32 heads of 2048 × 2048 scores per GPU; kineto traces of
astra-sim 24S_HML_FP) and a training step of fp32 with apex's Adam (40 GB, 1,555 GB/s; HTA's
trace_diff). Bytes are tensors read and written once: a masked softmax reads and writes its whole
square, Adam moves 28 bytes per fp32 parameter. One share per kind: what its kernels should take at
full bandwidth over what they took, less the fixed cost of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traces.calibration.errors import Fit, fit_error

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


def fit(recorded: Sequence[MeasuredKernel] = RECORDED, fixed: float = FIXED) -> Fit:
    """Return a share per kind; the same for every GPU, as only A100 kernels are public."""
    constants, errors = {"fixed": fixed}, []
    for kind in dict.fromkeys(row.kind for row in recorded):
        rows = [row for row in recorded if row.kind == kind]
        ideal = np.array([row.bytes / row.bandwidth for row in rows])
        seconds = np.array([row.seconds for row in rows])
        share = float(ideal.sum() / (seconds - fixed).sum())
        constants[kind] = min(share, 1.0)
        errors.append(fit_error(kind, ideal / constants[kind] + fixed, seconds))
    return Fit(constants, tuple(errors))
