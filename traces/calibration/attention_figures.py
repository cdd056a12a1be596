"""Published speeds of kernels of fused attention, from ``attention_{curves,kernels}.csv``.

Every curve has 16,384 tokens and a hidden size of 2,048: batch = tokens / s, heads = hidden / dim.
FLOPs are 4 · keys · s · dim per head, half of it under a causal mask, 2.5 times as many backward.
The benchmarks launch a kernel 30 times in a row (flash_attn/utils/benchmark.py): bursts of 5 ms at
512 tokens, and of 100 to 400 ms forward and backward at 16,384, where the clock has begun to fall.
"""

from __future__ import annotations

from typing import NamedTuple

from traces.calibration.published import rows

TOKENS, HIDDEN = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

A100 = "Dao-AILab/flash-attention assets/flash2_a100_fwd_bwd_benchmark.png"
H100_BOTH = "Dao-AILab/flash-attention assets/flash2_h100_fwd_bwd_benchmark.png"
H100 = "forward: Dao-AILab/flash-attention assets/flash3_fp16_fwd.png; backward: "
H100 += "arXiv 2407.08608, figure 6"
SIMUMAX = "causal sdp rows of MooreThreads/SimuMax configs/system at 4dcaae51, half of their FLOPs"
OLD, TRITON, SECOND, THIRD = "FlashAttention", "Triton", "FlashAttention-2", "FlashAttention-3"
BOOST = "FlashAttention-4"  # measured on a B200 whose clock had not fallen


class ThroughputCurve(NamedTuple):
    """TFLOP/s at each of ``LENGTHS``, for one kernel, mask and head dimension; 0: not readable."""

    gpu: str
    kernel: str  # as the source calls it
    phase: str  # forward, backward, or both
    causal: bool
    dim: int
    tflops: tuple[float, ...]


class Speed(NamedTuple):
    """TFLOP/s of one kernel, counted without what a mask leaves out."""

    heads: int  # of the whole batch
    sequence: int
    dim: int  # mean head dimension over the products
    tflops: float
    causal: bool


def curves(use: str = "fit") -> list[ThroughputCurve]:
    """Return the curves that are fitted, or with the ``use`` "check" those that are compared."""
    return [
        ThroughputCurve(
            row["gpu"], row["kernel"], row["phase"], row["causal"] == "yes", int(row["dim"]),
            tuple(float(row[str(length)]) for length in LENGTHS),
        )
        for row in rows("attention_curves")
        if row["use"] == use
    ]  # fmt: skip


def speeds(gpu: str, kernel: str, phase: str) -> list[Speed]:
    """Return the speeds of a kernel on a GPU, forward or backward."""
    return [
        Speed(
            int(row["heads"]), int(row["sequence"]), int(row["dim"]), float(row["tflops"]),
            row["causal"] == "yes",
        )
        for row in rows("attention_kernels")
        if (row["gpu"], row["kernel"], row["phase"]) == (gpu, kernel, phase)
    ]  # fmt: skip
