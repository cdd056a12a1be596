"""How long does a kernel take alone on a GPU? Its shape against a few fitted constants.

A kernel takes max(arithmetic, memory) + fixed seconds. Arithmetic is FLOPs over the peak times an
efficiency of the shape, and, where a result is added to, most of that traffic, which comes when a
tile is done; memory is bytes over the HBM bandwidth times a share; fixed is what a kernel costs
however small it is. The constants stand in the topology file (``[gpu.gemm.bf16]``,
``[gpu.attention]``, ``[gpu.memory_kernels]``) and are fitted to public tables of measured kernels
by ``traincast calibrate``. No constant can make a kernel faster than the peak or the bandwidth.

The two shape functions take floats or NumPy arrays, so that calibration fits this very code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import fsum
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.graph import Compute
from sim.units import BYTES

Array = float | NDArray[np.float64]

MEMORY_KINDS = ("norm", "elementwise", "softmax", "embedding", "cross_entropy", "optimizer")
KINDS = ("gemm", "grouped_gemm", "attention", "attention_backward", *MEMORY_KINDS)
"""What :func:`compute_seconds` prices."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
SPLITS = (1, 2, 4)
ADVICE = 'base = "dgx_a100", or another topology that has it, or a copy of its table would do'
"""Of a topology file that lacks constants."""
QUERY_TILE = 128  # rows of queries that one block of FlashAttention keeps


class Gpu(Protocol):
    """What a cost needs of a GPU."""

    @property
    def sms(self) -> int:
        """Streaming multiprocessors."""

    @property
    def memory_bandwidth(self) -> float:
        """HBM, B/s."""

    @property
    def peak(self) -> Mapping[str, float]:
        """Dense FLOP/s by dtype."""

    @property
    def costs(self) -> Mapping[str, Any]:
        """The fitted tables of the topology file: gemm, attention, memory_kernels."""


class Gemm(NamedTuple):
    """Constants of matrix multiplication, one table per dtype."""

    tile_256x128: float  # share of the peak that a full wave of such tiles reaches at infinite k
    tile_128x128: float
    tile_128x64: float
    tile_64x64: float
    ramp: float  # columns of k that filling and draining a tile is worth
    quantisation: float  # 1: a last, partial wave costs a whole one; 0: nothing is lost
    split: float  # cost of splitting k over 2 or 4 tiles, as a factor
    derating: float  # of long multiplications, which clock down under their power: factor − 1
    derating_flops: float  # FLOPs of one multiplication at which half of that is lost
    accumulate: float  # of traffic beyond writing the result once: what arithmetic does not hide
    memory: float  # share of the HBM bandwidth
    fixed: float  # seconds


class Tiling(NamedTuple):
    """A way to multiply: a tile of the result for each SM, and k over so many of them."""

    rows: Array
    columns: Array
    split: Array
    share: Array  # of the peak, of a full wave of such tiles
    longer: Array  # a factor, for the split


class Attention(NamedTuple):
    """Constants of fused attention (FlashAttention and cuDNN's)."""

    forward: float  # share of the peak at infinite keys and head dimension
    backward: float
    keys: float  # keys per query at which half of it is reached
    head_dim: float  # head dimension likewise
    quantisation: float
    memory: float
    fixed: float  # seconds


Constants = TypeVar("Constants", Gemm, Attention)


def compute_seconds(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    """(arithmetic, memory, fixed) seconds of a kernel; alone it takes max of two plus the third.

    ValueError for a kind, dtype or shape that has no cost.
    """
    if work.kind not in KINDS:
        raise InputError(f"no cost for kernels of kind {work.kind!r}; there are {', '.join(KINDS)}")
    if work.dtype not in gpu.peak:
        have = ", ".join(gpu.peak)
        raise InputError(f"the GPU has no peak for dtype {work.dtype!r}; it has {have}")
    if work.kind in MEMORY_KINDS:
        return _memory_kernel(gpu, work)
    return _attention(gpu, work) if work.kind.startswith("attention") else _gemm(gpu, work)


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
    c: Gemm, peak: float, sms: int, batch: Array, m: Array, n: Array, k: Array
) -> Array:
    """Arithmetic seconds of ``batch`` products (m, k) · (k, n), by the best of :func:`tilings`."""
    best: Array = np.inf
    for tiling in tilings(c):
        best = np.minimum(best, tiling_seconds(c, tiling, peak, sms, batch, m, n, k))
    return best * derated(c, 2.0 * batch * m * n * k)


def tiling_seconds(
    c: Gemm, tiling: Tiling, peak: float, sms: int, batch: Array, m: Array, n: Array, k: Array
) -> Array:
    """The same with a given tile and split, at full clock.

    Tiles run in waves of one per SM; a tile costs k + ramp columns.
    """
    rows, columns, split, share, longer = tiling
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * split
    flops = 2.0 * rows * columns * (k / split + c.ramp) * longer
    per_wave = flops * sms / (peak * share)
    return _waves(tiles / sms, c.quantisation) * per_wave


def tilings(c: Gemm) -> list[Tiling]:
    """Those between which a library chooses."""
    sizes = {32768: c.tile_256x128, 16384: c.tile_128x128, 8192: c.tile_128x64, 4096: c.tile_64x64}
    return [
        Tiling(rows, columns, split, sizes[rows * columns], 1.0 if split == 1 else c.split)
        for (rows, columns), split in product(TILES, SPLITS)
    ]


def derated(c: Gemm, flops: Array) -> Array:
    """How much longer a multiplication of so many FLOPs takes for its lower clock."""
    return 1.0 + c.derating * flops / (flops + c.derating_flops)


def grouped_gemm_seconds(
    c: Gemm, peak: float, sms: int, products: Sequence[tuple[float, ...]]
) -> float:
    """Arithmetic seconds of one kernel of several batches of products, (batch, m, n, k) each.

    Tiles of all of them, of one size, fill the waves together; a tile takes its own k's time. For
    one batch this is :func:`gemm_seconds`.
    """
    batch, m, n, k = np.array(products, np.float64).T
    best = np.inf
    for rows, columns, split, share, longer in tilings(c):
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns) * split
        flops = 2.0 * rows * columns * (k / split + c.ramp) * longer
        per_wave = flops * sms / (peak * share)
        mean = float(tiles @ per_wave) / float(tiles.sum())
        best = min(best, float(_waves(float(tiles.sum()) / sms, c.quantisation)) * mean)
    total = float((2.0 * batch * m * n * k).sum())
    return float(best * derated(c, total))


def _products(work: Compute) -> list[tuple[float, ...]]:
    """The batches of products of a grouped GEMM's shape."""
    if not work.shape or len(work.shape) % 4 or min(work.shape) <= 0:
        raise InputError(
            f"a kernel of kind {work.kind!r} has shape {work.shape}; it takes (batch, m, n, k) of "
            "each batch of products, all positive"
        )
    sizes = [float(size) for size in work.shape]
    return [tuple(sizes[i : i + 4]) for i in range(0, len(sizes), 4)]


def gemm_constants(gpu: Gpu, dtype: str) -> Gemm:
    """The constants of matrix products of a dtype, or else bf16's, the one table of 16 and 32 bits
    that is measured: shares of the dtype's own peak."""
    by_dtype = table(gpu, "gemm")
    return constants(Gemm, by_dtype.get(dtype) or by_dtype.get("bf16") or {})


def _waves(filled: Array, quantisation: float) -> Array:
    """Waves to pay for: at least one, and a part of what is missing in the last."""
    return (1.0 - quantisation) * np.maximum(filled, 1.0) + quantisation * np.ceil(filled)


def _attention(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    batch, heads, s_q, s_k, dim = _shape(work, 5, "(batch, heads, s_q, s_k, head_dim)")
    c = constants(Attention, table(gpu, "attention"))
    backward = work.kind == "attention_backward"
    pairs = work.flops / ((10.0 if backward else 4.0) * batch * heads * dim)
    keys = min(pairs / s_q, s_k)  # that a query meets: s_k, or half of them under a causal mask
    share = c.backward if backward else c.forward
    peak = _attention_peak(gpu.peak, work.dtype) * share
    seconds = attention_seconds(c, peak, gpu.sms, work.flops, batch * heads, s_q, keys, dim)
    return float(seconds), work.bytes / (gpu.memory_bandwidth * c.memory), c.fixed


def _attention_peak(peak: Mapping[str, float], dtype: str) -> float:
    """FLOP/s of the units that fused attention uses.

    PyTorch's kernel that takes fp32 makes three tf32 products of one, on GPUs that have tf32 and
    whatever ``set_float32_matmul_precision`` says (CUTLASS's ``OpMultiplyAddFastF32``;
    aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h, DefaultGemmType).
    """
    thrice = peak.get("tf32", 0.0) / 3 if dtype == "fp32" else 0.0
    return max(peak[dtype], thrice)


def attention_seconds(
    c: Attention, peak: float, sms: int, flops: Array, heads: Array, s_q: Array, keys: Array,
    dim: Array,
) -> Array:  # fmt: skip
    """Arithmetic seconds of fused attention of so many (batch · heads), at that share of the peak.

    ``keys`` is the mean number of keys that a query meets. FLOPs are 4 · keys · s_q · dim per head
    forward and 10 backward (which recomputes the scores).
    """
    filled = heads * np.ceil(s_q / QUERY_TILE) / sms
    lost = _waves(filled, c.quantisation) / filled
    ramps = (1.0 + c.keys / keys) * (1.0 + c.head_dim / dim)
    return flops / peak * ramps * lost


def _memory_kernel(gpu: Gpu, work: Compute) -> tuple[float, float, float]:
    costs = table(gpu, "memory_kernels")
    vector = gpu.peak.get("fp32", gpu.peak[work.dtype])  # these kernels use no tensor cores
    memory = work.bytes / (gpu.memory_bandwidth * float(costs[work.kind]))
    return work.flops / vector, memory, float(costs["fixed"])


def table(gpu: Gpu, name: str) -> Mapping[str, Any]:
    """A fitted table of the topology file; ValueError, saying what would do, where it lacks one."""
    found = gpu.costs.get(name)
    if not isinstance(found, Mapping):
        raise InputError(f"there is no table [gpu.{name}]; {ADVICE}")
    return found


def constants(kind: type[Constants], values: Mapping[str, Any]) -> Constants:
    """A table of the topology file as numbers in SI units; ValueError names what it lacks."""
    lacking = [name for name in kind._fields if name not in values]
    if lacking:
        name = kind.__name__.lower()
        raise InputError(f"the table [gpu.{name}] lacks {', '.join(lacking)}; {ADVICE}")
    return kind(*(float(values[name]) for name in kind._fields))


def _shape(work: Compute, length: int, says: str) -> tuple[float, ...]:
    if len(work.shape) != length or min(work.shape) <= 0:
        raise InputError(
            f"a kernel of kind {work.kind!r} has shape {work.shape}; it takes {says}, all positive"
        )
    return tuple(map(float, work.shape))
