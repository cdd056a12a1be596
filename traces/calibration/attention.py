"""What fraction of the peak does fused attention reach? It fits the `AttentionConstants`.

A100: FlashAttention-2, forward and backward together, as published; how they divide is taken from
the paper: up to 73 % of the peak forward, 63 % backward. H100: the forward of cuDNN's kernel (what
Megatron and NeMo run there) in FlashAttention-3's figure, with the effect of the head dimension
from FlashAttention-3 itself; backward in the A100's proportion, as no public table of it was found.
H200: as H100. B200, of which no figure is written down here: prefill kernels of inference, with
head dimension 128. Of 64 they reach half the FLOP/s there, as exponentials set their pace; no share
up to 1 has such a ramp, so head dimensions go by the A100's and times of 64 come out too short.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.machine.cluster import Gpu
from sim.machine.kernels import QUERY_TILE, AttentionConstants, attention_seconds
from traces.calibration.errors import Fit, FitError, Floats, fit_error, solve

BACKWARD = 0.63 / 0.73  # FlashAttention-2, arXiv 2307.08691
TOKENS, HIDDEN = 16384, 2048  # those of every row: batch = tokens / s, heads = hidden / dim
MEMORY, FIXED = 0.8, 5e-6  # memory never limits these rows; fixed: two launches and the tail


CHECK = "check, attention: inference prefill of aiconfigurator-core, fastest framework"
FULL_WAVES = 4  # a prefill row with so many waves of blocks shows what a full GPU reaches


class ThroughputCurve(NamedTuple):
    """TFLOP/s by sequence length, for one kernel, mask and head dimension."""

    gpu: str
    kernel: str
    phase: str  # forward, or both: forward and backward, 3.5 times the FLOPs
    causal: bool
    dim: int
    sequence: tuple[int, ...]
    tflops: tuple[float, ...]


S = (512, 1024, 2048, 4096, 8192, 16384)
# Dao-AILab/flash-attention assets/flash2_a100_fwd_bwd_benchmark.png and assets/flash3_fp16_fwd.png
FIGURES = (
    ThroughputCurve(
        "a100", "FlashAttention-2", "both", False, 64, S, (132, 153, 162, 171, 175, 176)
    ),
    ThroughputCurve(
        "a100", "FlashAttention-2", "both", False, 128, S[1:], (173, 187, 196, 201, 203)
    ),
    ThroughputCurve("a100", "FlashAttention-2", "both", True, 64, S, (88, 119, 140, 156, 165, 171)),
    ThroughputCurve(
        "a100", "FlashAttention-2", "both", True, 128, S, (99, 133, 155, 173, 182, 189)
    ),
    ThroughputCurve("h100", "cuDNN", "forward", True, 128, S, (315, 410, 484, 518, 529, 539)),
    ThroughputCurve(
        "h100", "FlashAttention-3", "forward", False, 64, S, (333, 392, 460, 476, 496, 497)
    ),
    ThroughputCurve(
        "h100", "FlashAttention-3", "forward", True, 64, S, (197, 265, 371, 420, 460, 473)
    ),
    ThroughputCurve(
        "h100", "FlashAttention-3", "forward", False, 128, S, (467, 565, 625, 638, 646, 648)
    ),
    ThroughputCurve(
        "h100", "FlashAttention-3", "forward", True, 128, S, (292, 423, 521, 579, 602, 616)
    ),
)


def fit(gpu: Gpu, kind: str) -> Fit:
    """Return constants for this kind of GPU (a100, h100), and errors per kernel."""
    curves = [curve for curve in FIGURES if curve.gpu == kind]
    kernels = list(dict.fromkeys(curve.kernel for curve in curves))  # the one to use first
    measured = np.concatenate([_seconds(curve) for curve in curves])

    def constants(x: Floats, kernel: str) -> AttentionConstants:
        forward, keys = (float(v) for v in x[1:].reshape(-1, 2)[kernels.index(kernel)])
        return AttentionConstants(
            forward, forward * BACKWARD, keys, float(x[0]), 0.0, MEMORY, FIXED
        )

    def times(x: Floats) -> Floats:
        rows = [predict(gpu, constants(x, curve.kernel), curve) for curve in curves]
        return np.concatenate(rows)

    start = [20.0, *[0.7, 150.0] * len(kernels)]
    high = [200.0, *[1.0, 2000.0] * len(kernels)]
    x = solve(lambda x: np.log(times(x) / measured), start, 0.0, high)
    which = np.concatenate([[c.kernel] * len(c.sequence) for c in curves])
    errors = tuple(
        fit_error(f"attention {name}", times(x)[which == name], measured[which == name])
        for name in kernels
    )
    return Fit(constants(x, kernels[0])._asdict(), errors)


def fit_prefill(
    gpu: Gpu, like: AttentionConstants, heads: Floats, s: Floats, seconds: Floats
) -> Fit:
    """Fit forward share and keys to causal prefill rows that fill the GPU; the rest is ``like``."""
    full = heads * np.ceil(s / QUERY_TILE) >= FULL_WAVES * gpu.sms
    heads, s, seconds = heads[full], s[full], seconds[full]

    def constants(x: Floats) -> AttentionConstants:
        forward, keys = map(float, x)
        return like._replace(forward=forward, backward=forward * BACKWARD, keys=keys)

    x = solve(
        lambda x: np.log(_prefill(gpu, constants(x), heads, s) / seconds),
        [0.7, 150.0],
        0.0,
        [1.0, 2000.0],
    )
    times = _prefill(gpu, constants(x), heads, s)
    error = fit_error("attention, prefill rows that fill the GPU", times, seconds)
    return Fit(constants(x)._asdict(), (error,))


def predict(gpu: Gpu, c: AttentionConstants, curve: ThroughputCurve) -> Floats:
    """Return the seconds of every point of a curve: forward, and backward if it is included."""
    s = np.array(curve.sequence, np.float64)
    keys = s / 2 if curve.causal else s
    heads = TOKENS / s * (HIDDEN / curve.dim)
    flops = 4.0 * heads * s * keys * curve.dim
    out = np.zeros_like(s)
    for share, times in ((c.forward, 1.0), (c.backward, 2.5 * (curve.phase == "both"))):
        peak = gpu.peak["bf16"] * share
        alone = attention_seconds(c, peak, gpu.sms, flops * times, heads, s, keys, curve.dim)
        out += (alone + c.fixed) * bool(times)
    return out


def check(gpu: Gpu, c: AttentionConstants, heads: Floats, s: Floats, seconds: Floats) -> FitError:
    """Compare the forward fit with causal prefill kernels of inference, which also fill a cache."""
    return fit_error(CHECK, _prefill(gpu, c, heads, s), seconds)


def _prefill(gpu: Gpu, c: AttentionConstants, heads: Floats, s: Floats) -> Floats:
    """Return the seconds of a causal forward with head dimension 128."""
    flops = 2.0 * heads * s * s * 128
    peak = gpu.peak["bf16"] * c.forward
    return np.asarray(attention_seconds(c, peak, gpu.sms, flops, heads, s, s / 2, 128.0)) + c.fixed


def _seconds(curve: ThroughputCurve) -> Floats:
    s = np.array(curve.sequence, np.float64)
    flops = 4.0 * TOKENS * s * HIDDEN * (0.5 if curve.causal else 1.0)
    return flops * (3.5 if curve.phase == "both" else 1.0) / (np.array(curve.tflops) * 1e12)
