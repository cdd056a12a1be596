"""What fraction of the peak do matrix multiplications reach? The constants of `sim.kernels.Gemm`.

Fitted by least squares on the log of time over rows of the sizes that training multiplies: m
(tokens) from 1,024, n and k from 512, m in whole tiles. Thin rows (m ≤ 64, memory-bound) give the
memory share. The rows were measured one shape at a time in a loop; how a recorded training step and
a search for the best sustained rate compare is reported beside the fit, not fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.cluster import Gpu
from sim.kernels import Gemm, gemm_seconds
from traces.calibration import accumulate
from traces.calibration.errors import Fit, FitError, Floats, fit_error, solve
from traces.calibration.tables import GemmRows, take

APART = ("accumulate", "memory")  # fitted by themselves
ORDER = tuple(name for name in Gemm._fields if name not in APART)
START = (0.9, 0.85, 0.75, 0.65, 200.0, 0.6, 1.1, 0.1, 1.0, 3.0)  # TFLOP and microseconds last
LOW = (0.3, 0.3, 0.2, 0.1, 0.0, 0.0, 1.0, 0.0, 0.01, 0.0)
HIGH = (1.0, 1.0, 1.0, 1.0, 2000.0, 1.0, 2.0, 0.6, 50.0, 20.0)


class Recorded(NamedTuple):
    """A multiplication measured elsewhere: GPU, source, shape, seconds."""

    gpu: str
    source: str
    batch: int
    m: int
    n: int
    k: int
    seconds: float


MEGATRON = "Megatron GPT TP 8 trace, fp16 (astra-sim 24S_HML_FP kineto), medians"
BEST = "best sustained shape of a search, bf16 (stas00/ml-engineering MAMF)"
RECORDED = (
    Recorded("a100", MEGATRON, 1, 8192, 1536, 4096, 403e-6),
    Recorded("a100", MEGATRON, 1, 8192, 4096, 512, 161e-6),
    Recorded("a100", MEGATRON, 1, 8192, 2048, 4096, 527e-6),
    Recorded("a100", MEGATRON, 1, 8192, 4096, 2048, 573e-6),
    Recorded("a100", MEGATRON, 1, 8192, 6400, 4096, 1699e-6),
    Recorded("a100", MEGATRON, 32, 2048, 2048, 64, 295e-6),  # scores: grid z gives 32 heads
    Recorded("a100", MEGATRON, 32, 2048, 64, 2048, 184e-6),  # context
    Recorded("a100", BEST, 1, 1024, 10240, 5120, 2 * 1024 * 10240 * 5120 / 271.2e12),
    Recorded("h100", BEST, 1, 2048, 2048, 13312, 2 * 2048 * 2048 * 13312 / 794.5e12),
)
"""Not fitted: what the fit is held against."""


def fit(gpu: Gpu, dtype: str, rows: GemmRows) -> Fit:
    """Constants for one dtype of the topology, and errors on training-sized rows."""
    memory, added = _memory_share(gpu, rows), accumulate.fit()
    rows = training_sized(rows)

    def constants(x: Floats) -> Gemm:
        si = dict(zip(ORDER, map(float, x), strict=True))
        si["derating_flops"] *= 1e12
        si["fixed"] *= 1e-6
        return Gemm(memory=memory, **added.constants, **si)

    def off(x: Floats) -> Floats:
        out: Floats = np.log(predict(gpu, dtype, constants(x), 1.0, *rows[:3]) / rows.seconds)
        return out

    best = constants(solve(off, START, LOW, HIGH))
    family = f"gemm {dtype}"
    error = fit_error(family, predict(gpu, dtype, best, 1.0, *rows[:3]), rows.seconds)
    both = rows.spread[~np.isnan(rows.spread)]
    spread = fit_error(
        f"{family}: spread over frameworks (standard deviation)", 1.0 + both, np.ones_like(both)
    )
    return Fit(best._asdict(), (error, spread, *added.errors))


def training_sized(rows: GemmRows) -> GemmRows:
    """Rows that a training step has: tokens in whole tiles, hidden sizes from 512."""
    mask = (rows.m >= 1024) & (rows.m % 256 == 0) & (rows.n >= 512) & (rows.k >= 512)
    return take(rows, mask)


def check(gpu: Gpu, kind: str, dtype: str, constants: Gemm) -> tuple[FitError, ...]:
    """The fit against multiplications that it has not seen, one row per source."""
    out = []
    for source in (MEGATRON, BEST):
        rows = [row for row in RECORDED if row.gpu == kind and row.source == source]
        if rows:
            batch, m, n, k, seconds = np.array([row[2:] for row in rows], np.float64).T
            times = predict(gpu, dtype, constants, batch, m, n, k)
            out.append(fit_error(f"check, gemm: {source}", times, seconds))
    return tuple(out)


def predict(
    gpu: Gpu, dtype: str, c: Gemm, batch: Floats | float, m: Floats, n: Floats, k: Floats
) -> Floats:
    """Seconds alone, of 16-bit elements."""
    arithmetic = gemm_seconds(c, gpu.peak[dtype], gpu.sms, batch, m, n, k)
    moved = 2.0 * batch * (m * k + k * n + m * n)
    memory = moved / (gpu.memory_bandwidth * c.memory)
    return np.asarray(np.maximum(arithmetic, memory) + c.fixed)


def _memory_share(gpu: Gpu, rows: GemmRows) -> float:
    """Median share of the HBM bandwidth of multiplications by a few rows, at most 1."""
    thin = take(rows, (rows.m >= 16) & (rows.m <= 64) & (rows.n >= 4096) & (rows.k >= 4096))
    moved = 2.0 * (thin.m * thin.k + thin.k * thin.n + thin.m * thin.n)
    return min(float(np.median(moved / thin.seconds)) / gpu.memory_bandwidth, 1.0)
