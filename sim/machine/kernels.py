"""How long a kernel takes alone on a GPU: its shape against a few fitted constants.

A kernel takes max(arithmetic, memory) + fixed seconds. Arithmetic is FLOPs over the peak times an
efficiency of the shape, and, where a result is added to, most of that traffic, which comes when a
tile is done. Memory is bytes over a share of the HBM bandwidth. Fixed is what every kernel costs,
however small. The constants are in the topology file (``[gpu.gemm.bf16]``,
``[gpu.attention.flash2]``, ``[gpu.memory_kernels]``) and are fitted to public tables of measured
kernels by ``traincast calibrate``. No constant can make a kernel faster than the peak or the
bandwidth.

The two shape functions take floats or NumPy arrays, so that calibration fits this very code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import fsum
from typing import Any, NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.graph import Compute, Floats
from sim.machine.attention_tables import ADVICE, AttentionConstants, attention_constants
from sim.machine.cluster import Gpu
from sim.units import BYTES

Array = float | Floats

MEMORY_KINDS = ("norm", "elementwise", "softmax", "embedding", "cross_entropy", "optimizer")
VARIANTS = ("norm_backward", "mxfp8", "gather", "scatter", "eager_gather", "eager_scatter")
"""Kernels (``by`` of a work) measured on some GPUs; all others have the share of their kind."""
KINDS = ("gemm", "grouped_gemm", "attention", "attention_backward", *MEMORY_KINDS)
"""The kinds of kernel that :func:`compute_seconds` prices."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
SPLITS = (1, 2, 4)
QUERY_TILE = 128  # rows of queries in one block of FlashAttention
ROUNDING = 1e-9
"""Relative error of the keys per query, which are computed from FLOPs."""


class SizeError(InputError):
    """A kernel that no GPU could price, as its kind or its shape is wrong."""


class GemmConstants(NamedTuple):
    """Constants of matrix multiplication, one table per dtype."""

    tile_256x128: float  # share of the peak that a full wave of such tiles reaches at infinite k
    tile_128x128: float
    tile_128x64: float
    tile_64x64: float
    ramp: float  # columns of k that filling and draining a tile is worth
    quantisation: float  # 1: a partial last wave costs a whole one; 0: it costs its part
    split: float  # cost of splitting k over 2 or 4 tiles, as a factor
    derating: float  # factor − 1 on products that run back to back for long, which clock down
    derating_seconds: float  # of such a burst, in which half of the derating is lost
    accumulate: float  # share of traffic beyond writing the result once that nothing hides
    memory: float  # share of the HBM bandwidth
    fixed: float  # seconds


class Tiling(NamedTuple):
    """A way to multiply: a tile of the result for each SM, and k split over some of them."""

    rows: Array  # rows of a tile
    columns: Array
    split: Array
    share: Array  # share of the peak that a full wave of such tiles reaches
    longer: Array  # factor on the time for the split


def compute_seconds(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    """Return the (arithmetic, memory, fixed) seconds of a kernel.

    Alone it takes the larger of the first two plus the third. Raises InputError for a kind, dtype
    or shape that has no cost.
    """
    if work.kind not in KINDS:
        raise SizeError(f"no cost for kernels of kind {work.kind!r}; there are {', '.join(KINDS)}")
    if work.dtype not in gpu.peak:
        have = ", ".join(gpu.peak)
        raise InputError(f"the GPU has no peak for dtype {work.dtype!r}; it has {have}")
    if work.kind in MEMORY_KINDS:
        return _memory_kernel(gpu, work)
    return _attention(gpu, work) if work.kind.startswith("attention") else _gemm(gpu, work)


def borrowed(gpu: Gpu, works: Iterable[object]) -> dict[str, str]:
    """Return kernels among works that the GPU has no constants for, and the kind they borrow."""
    found = {work.by: work.kind for work in works if isinstance(work, Compute) and work.by}
    own = {*VARIANTS, *table(gpu, "memory_kernels")}
    there = sorted(by for by in found if by not in own and not found[by].startswith("attention"))
    return {by: found[by] for by in there}


def _gemm(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    c = gemm_constants(gpu, work.dtype)
    if not work.flops and not work.bytes and 0 in work.shape:
        return 0.0, 0.0, c.fixed  # experts without tokens
    if work.kind == "gemm":
        products = [_shape(work, 4, "(batch, m, n, k)")]
        batch, m, n, k = products[0]
        seconds = gemm_seconds(c, gpu.peak[work.dtype], gpu.sms, batch, m, n, k)
    else:
        products = _products(work)
        seconds = grouped_gemm_seconds(c, gpu.peak[work.dtype], gpu.sms, products)
    whole = fsum(2 * batch * m * n * k for batch, m, n, k in products)
    done = work.flops / whole  # less than 1 when part of the result is skipped
    width = BYTES.get(work.dtype, 2)
    written = max(width, 2)  # no result of 8 bits
    once = fsum(batch * (width * (m * k + k * n) + written * m * n) for batch, m, n, k in products)
    added = c.accumulate * max(work.bytes - once, 0.0) / gpu.memory_bandwidth
    memory = work.bytes / (gpu.memory_bandwidth * c.memory)
    return float(seconds) * done + added, memory, c.fixed


def gemm_seconds(
    c: GemmConstants, peak: float, sms: int, batch: Array, m: Array, n: Array, k: Array
) -> Array:
    """Return the arithmetic seconds of ``batch`` products (m, k) · (k, n) by the best tiling.

    The tilings are those of :func:`tilings`. ``peak`` is in FLOP/s. Sizes may be arrays of one
    shape; the result has that shape.
    """
    best: Array = np.inf
    for tiling in tilings(c):
        best = np.minimum(best, tiling_seconds(c, tiling, peak, sms, batch, m, n, k))
    return best


def tiling_seconds(
    c: GemmConstants,
    tiling: Tiling,
    peak: float,
    sms: int,
    batch: Array,
    m: Array,
    n: Array,
    k: Array,
) -> Array:
    """Return the arithmetic seconds of such products with a given tiling, at full clock.

    Tiles run in waves of one per SM; a tile costs k + ramp columns. Sizes may be arrays of one
    shape; the result has that shape.
    """
    rows, columns, split, share, longer = tiling
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * split
    flops = 2.0 * rows * columns * (k / split + c.ramp) * longer
    per_wave = flops * sms / (peak * share)
    return _waves(tiles / sms, c.quantisation) * per_wave


def tilings(c: GemmConstants) -> list[Tiling]:
    """Return the tilings between which a library chooses."""
    sizes = {32768: c.tile_256x128, 16384: c.tile_128x128, 8192: c.tile_128x64, 4096: c.tile_64x64}
    return [
        Tiling(rows, columns, split, sizes[rows * columns], 1.0 if split == 1 else c.split)
        for (rows, columns), split in product(TILES, SPLITS)
    ]


def derated(c: GemmConstants, burst: Array) -> Array:
    """Return how much longer products take that run back to back for ``burst`` seconds.

    That is the mean over the burst: the GPU lowers its clock once its power has been too high for a
    while. In a step the clock follows from all that runs (:mod:`sim.machine.power`).
    """
    return 1.0 + c.derating * burst / (burst + c.derating_seconds)


def grouped_gemm_seconds(
    c: GemmConstants, peak: float, sms: int, products: Sequence[tuple[float, ...]]
) -> float:
    """Return the arithmetic seconds of one kernel of several batches of products.

    Each batch is (batch, m, n, k). Tiles of all of them have one size and fill the waves together;
    a tile takes the time of its own k. For one batch this is :func:`gemm_seconds`.
    """
    batch, m, n, k = np.array(products, np.float64).T
    best = np.inf
    for rows, columns, split, share, longer in tilings(c):
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * split
        flops = 2.0 * rows * columns * (k / split + c.ramp) * longer
        per_wave = flops * sms / (peak * share)
        mean = float(tiles @ per_wave) / float(tiles.sum())
        best = min(best, float(_waves(float(tiles.sum()) / sms, c.quantisation)) * mean)
    return float(best)


def _products(work: Compute) -> list[tuple[float, ...]]:
    """Return the batches of products in a grouped GEMM's shape."""
    if not work.shape or len(work.shape) % 4 or min(work.shape) <= 0:
        raise SizeError(
            f"a kernel of kind {work.kind!r} has shape {work.shape}; it takes (batch, m, n, k) of "
            "each batch of products, all positive"
        )
    sizes = [float(size) for size in work.shape]
    return [tuple(sizes[i : i + 4]) for i in range(0, len(sizes), 4)]


def gemm_constants(gpu: Gpu, dtype: str) -> GemmConstants:
    """Return the constants of matrix products of a dtype, else those of bf16.

    bf16's is the one table that is measured for 16 and 32 bits; its shares apply to the dtype's own
    peak. Raises InputError, which names the missing keys, where constants are missing.
    """
    by_dtype = table(gpu, "gemm")
    values = by_dtype.get(dtype) or by_dtype.get("bf16") or {}
    if lacking := [name for name in GemmConstants._fields if name not in values]:
        raise InputError(f"the table [gpu.gemm] lacks {', '.join(lacking)}; {ADVICE}")
    return GemmConstants(*(float(values[name]) for name in GemmConstants._fields))


def _waves(filled: Array, quantisation: float) -> Array:
    """Return the waves to pay for: at least one, and part of what is missing in the last."""
    return (1.0 - quantisation) * np.maximum(filled, 1.0) + quantisation * np.ceil(filled)


def _attention(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    batch, heads, s_q, s_k, dim = _shape(work, 5, "(batch, heads, s_q, s_k, head_dim)")
    c = attention_constants(table(gpu, "attention"), work.by or "flash")
    backward = work.kind == "attention_backward"
    pairs = work.flops / ((10.0 if backward else 4.0) * batch * heads * dim)
    keys = min(pairs / s_q, s_k)  # keys per query: s_k, or half of them under a causal mask
    peak = _attention_peak(gpu.peak, work.dtype)
    seconds = attention_seconds(
        c, backward, peak, gpu.sms, work.flops, batch * heads, s_q, s_k, keys, dim
    )
    return float(seconds), work.bytes / (gpu.memory_bandwidth * c.memory), c.fixed


def _attention_peak(peak: Mapping[str, float], dtype: str) -> float:
    """Return the FLOP/s of the units that fused attention uses.

    PyTorch's kernel for fp32 makes one product from three tf32 products on GPUs that have tf32,
    whatever ``set_float32_matmul_precision`` says (CUTLASS's ``OpMultiplyAddFastF32``;
    aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h, DefaultGemmType).
    """
    thrice = peak.get("tf32", 0.0) / 3 if dtype == "fp32" else 0.0
    return max(peak[dtype], thrice)


def attention_seconds(
    c: AttentionConstants, backward: bool, peak: float, sms: int, flops: Array, heads: Array,
    s_q: Array, s_k: Array, keys: Array, dim: Array,
) -> Array:  # fmt: skip
    """Return the arithmetic seconds of fused attention; ``heads`` is batch · heads.

    ``peak`` is in FLOP/s, ``keys`` the mean number of the s_k keys that a query meets: fewer under
    a mask. FLOPs are 4 · keys · s_q · dim per head forward and 10 backward, which recomputes the
    scores. Sizes may be arrays of one shape; the result has that shape.
    """
    masked = c.masked * np.less(keys, s_k * (1.0 - ROUNDING))
    ramp = 1.0 + ((c.backward_keys if backward else c.keys) + masked) / keys
    filled = heads * np.ceil(s_q / QUERY_TILE) / sms
    lost = _waves(filled, c.quantisation) / filled
    return flops / (peak * c.share(dim, backward)) * ramp * lost


def _memory_kernel(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    costs = table(gpu, "memory_kernels")
    vector = gpu.peak.get("fp32", gpu.peak[work.dtype])  # these kernels use no tensor cores
    share = float(costs.get(work.by) or costs[work.kind])
    memory = work.bytes / (gpu.memory_bandwidth * share)
    return work.flops / vector, memory, float(costs["fixed"])


def table(gpu: Gpu, name: str) -> Mapping[str, Any]:
    """Return a fitted table of the topology file.

    Raises InputError, which says how to get the table, where the file lacks it.
    """
    found = gpu.costs.get(name)
    if not isinstance(found, Mapping):
        raise InputError(f"there is no table [gpu.{name}]; {ADVICE}")
    return found


def _shape(work: Compute, length: int, says: str) -> tuple[float, ...]:
    if len(work.shape) != length or min(work.shape) <= 0:
        raise SizeError(
            f"a kernel of kind {work.kind!r} has shape {work.shape}; it takes {says}, all positive"
        )
    return tuple(map(float, work.shape))
