"""What fraction of the peak do matrix multiplications reach? It fits the `GemmConstants`.

They are fitted by least squares on the log of time, over rows of the sizes that training
multiplies: m (tokens) from 1,024, n and k from 512, m in whole tiles. Thin rows (m ≤ 64,
memory-bound) give the memory share. The rows were measured one shape at a time in a loop. A
recorded training step and a search for the best sustained rate are compared with the fit but not
fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats
from sim.machine.cluster import Gpu
from sim.machine.kernels import (
    GemmConstants,
    Tiling,
    derated,
    gemm_seconds,
    tiling_seconds,
    tilings,
)
from sim.units import BYTES
from traces.calibration import accumulate
from traces.calibration.errors import Fit, FitError, differences, fit_error, solve
from traces.calibration.tables import GemmRows, take

APART = ("accumulate", "memory")  # each is fitted by itself
ORDER = tuple(name for name in GemmConstants._fields if name not in APART)
START = (0.9, 0.85, 0.75, 0.65, 200.0, 0.6, 1.1, 0.1, 1.0, 3.0)  # the last: TFLOP, microseconds
LOW = (0.3, 0.3, 0.2, 0.1, 0.0, 0.0, 1.0, 0.0, 20.0, 0.0)
HIGH = (1.0, 1.0, 1.0, 1.0, 2000.0, 1.0, 2.0, 1.0, 200.0, 20.0)
STARTS = 8  # starts of the search; a GPU's minima differ by a tenth in the sum of squares
HALVINGS = 20
Chosen = NDArray[np.intp]  # for each row, the place of its tiling among all


class PublishedGemm(NamedTuple):
    """A multiplication measured elsewhere: GPU, source, shape, seconds."""

    gpu: str
    source: str
    batch: int
    m: int
    n: int
    k: int
    seconds: float


QUANTISE = 5.0, 0.0, 40.0  # start and bounds: bytes moved per element of the operand of m rows
MEGATRON = "Megatron GPT TP 8 trace, fp16 (astra-sim 24S_HML_FP kineto), medians"
BEST = "best sustained shape of a search, bf16 (stas00/ml-engineering MAMF)"
BEST_FP8 = BEST.replace("bf16", "fp8")
RECORDED = (
    PublishedGemm("a100", MEGATRON, 1, 8192, 1536, 4096, 403e-6),
    PublishedGemm("a100", MEGATRON, 1, 8192, 4096, 512, 161e-6),
    PublishedGemm("a100", MEGATRON, 1, 8192, 2048, 4096, 527e-6),
    PublishedGemm("a100", MEGATRON, 1, 8192, 4096, 2048, 573e-6),
    PublishedGemm("a100", MEGATRON, 1, 8192, 6400, 4096, 1699e-6),
    PublishedGemm("a100", MEGATRON, 32, 2048, 2048, 64, 295e-6),  # scores: grid z gives 32 heads
    PublishedGemm("a100", MEGATRON, 32, 2048, 64, 2048, 184e-6),  # context
    PublishedGemm("a100", BEST, 1, 1024, 10240, 5120, 2 * 1024 * 10240 * 5120 / 271.2e12),
    PublishedGemm("h100", BEST, 1, 2048, 2048, 13312, 2 * 2048 * 2048 * 13312 / 794.5e12),
    PublishedGemm("h100", BEST_FP8, 1, 1024, 9216, 14336, 2 * 1024 * 9216 * 14336 / 1402.6e12),
    PublishedGemm("h200", BEST_FP8, 1, 1280, 4096, 12032, 2 * 1280 * 4096 * 12032 / 1453.4e12),
    PublishedGemm("b200", BEST, 1, 1792, 16128, 3072, 2 * 1792 * 16128 * 3072 / 1745.0e12),
    PublishedGemm("b200", BEST_FP8, 1, 15360, 4096, 3072, 2 * 15360 * 4096 * 3072 / 3432.5e12),
)
"""Measurements that are compared with the fit, not fitted."""


def fit(gpu: Gpu, dtype: str, rows: GemmRows, like: GemmConstants | None = None) -> Fit:
    """Fit constants for one dtype of the topology; errors are on training-sized rows.

    Rows of fp8 include the kernels that quantise an operand. Their traffic is fitted and left out;
    what they hide, the memory share and the launch, is taken from ``like``. The search begins from
    the topology's own constants too, so that they move only where a better fit is found.
    """
    memory = like.memory if like else _memory_share(gpu, dtype, rows)
    added = accumulate.fit()
    rows = training_sized(rows)

    def constants(x: Floats) -> GemmConstants:
        si = dict(zip(ORDER, map(float, x), strict=True))
        si["derating_seconds"] *= 1e-3
        si["fixed"] *= 1e-6
        return GemmConstants(memory=memory, **added.constants, **si)

    def times(x: Floats, chosen: Chosen | None = None) -> Floats:
        quantised: Floats = x[len(ORDER) :].sum() * rows.m * rows.k / gpu.memory_bandwidth
        c = constants(x[: len(ORDER)])
        return predict(gpu, dtype, c, 1.0, *rows[:3], chosen, rows.burst) + quantised

    def slopes(x: Floats) -> Floats:
        """Return slopes of the logarithm, every row with the tiling that is best now."""
        chosen = best_tilings(gpu, dtype, constants(x[: len(ORDER)]), rows)
        return differences(lambda x: np.log(times(x, chosen)), x)

    start, low, high = (
        (*bounds, *([extra] if like else []))
        for bounds, extra in zip((START, LOW, HIGH), QUANTISE, strict=True)
    )
    known = _known(gpu, dtype, start)
    x = solve(lambda x: np.log(times(x) / rows.seconds), start, low, high, slopes, STARTS, known)
    x = settled(times, x, start)
    best = constants(x[: len(ORDER)])
    family = f"gemm {dtype}"
    errors: tuple[FitError, ...] = (
        fit_error(family, times(x), rows.seconds),
        *_spread(family, rows),
    )
    errors += () if like else added.errors
    return Fit((best._replace(fixed=like.fixed) if like else best)._asdict(), errors)


def _known(gpu: Gpu, dtype: str, start: Sequence[float]) -> list[float] | None:
    """Return the arguments that stand for the topology's constants, or None if it has none."""
    table = gpu.costs.get("gemm", {}).get(dtype)
    if table is None:
        return None
    units = {"derating_seconds": 1e3, "fixed": 1e6}
    return [table[name] * units.get(name, 1.0) for name in ORDER] + list(start[len(ORDER) :])


def _spread(family: str, rows: GemmRows) -> tuple[FitError, ...]:
    both = rows.spread[~np.isnan(rows.spread)]
    name = f"{family}: spread over frameworks (standard deviation)"
    return (fit_error(name, 1.0 + both, np.ones_like(both)),) if len(both) else ()


def training_sized(rows: GemmRows) -> GemmRows:
    """Return the rows that a training step has: tokens in whole tiles, sizes from 512."""
    mask = (rows.m >= 1024) & (rows.m % 256 == 0) & (rows.n >= 512) & (rows.k >= 512)
    return take(rows, mask)


def check(gpu: Gpu, kind: str, dtype: str, constants: GemmConstants) -> tuple[FitError, ...]:
    """Compare the fit with multiplications that it has not seen, one row per source."""
    out = []
    for source in (BEST_FP8,) if dtype == "fp8" else (MEGATRON, BEST):
        rows = [row for row in RECORDED if row.gpu == kind and row.source == source]
        if rows:
            batch, m, n, k, seconds = np.array([row[2:] for row in rows], np.float64).T
            times = predict(gpu, dtype, constants, batch, m, n, k)
            out.append(fit_error(f"check, gemm: {source}", times, seconds))
    return tuple(out)


def settled(times: Callable[[Floats], Floats], x: Floats, start: Sequence[float]) -> Floats:
    """Move constants that no row tells, such as an unused tile's, as near to ``start`` as possible.

    Each move is halved until every row's time is that at ``x``.
    """
    x, known = x.copy(), times(x)
    for i, wanted in enumerate(start):
        kept = x[i]
        for share in (1.0, *[0.5] * HALVINGS):
            x[i] = kept + share * (wanted - kept)
            if (times(x) == known).all():
                kept = x[i]
            else:
                wanted = x[i]
        x[i] = kept
    return x


def best_tilings(gpu: Gpu, dtype: str, c: GemmConstants, rows: GemmRows) -> Chosen:
    """Return the place of each row's best tiling among all."""
    rate, sizes = (gpu.peak[dtype], gpu.sms), (1.0, *rows[:3])
    each = np.array([tiling_seconds(c, tiling, *rate, *sizes) for tiling in tilings(c)])
    return np.asarray(each.argmin(axis=0), np.intp)


def predict(
    gpu: Gpu, dtype: str, c: GemmConstants, batch: Floats | float, m: Floats, n: Floats, k: Floats,
    chosen: Chosen | None = None, burst: Floats | float = 0.0,
) -> Floats:  # fmt: skip
    """Return seconds alone, by the best tiling or a given one; results have 16 bits in any case."""
    peak, sms = gpu.peak[dtype], gpu.sms
    if chosen is None:
        arithmetic = gemm_seconds(c, peak, sms, batch, m, n, k)
    else:
        tiling = Tiling(*np.array(tilings(c))[chosen].T)
        arithmetic = tiling_seconds(c, tiling, peak, sms, batch, m, n, k)
    moved = batch * (BYTES[dtype] * (m * k + k * n) + 2.0 * m * n)
    memory = moved / (gpu.memory_bandwidth * c.memory)
    return np.asarray(np.maximum(arithmetic * derated(c, burst), memory) + c.fixed)


def _memory_share(gpu: Gpu, dtype: str, rows: GemmRows) -> float:
    """Return the median share of HBM bandwidth of multiplications by a few rows, at most 1."""
    thin = take(rows, (rows.m >= 16) & (rows.m <= 64) & (rows.n >= 4096) & (rows.k >= 4096))
    moved = BYTES[dtype] * (thin.m * thin.k + thin.k * thin.n) + 2.0 * thin.m * thin.n
    return min(float(np.median(moved / thin.seconds)) / gpu.memory_bandwidth, 1.0)
