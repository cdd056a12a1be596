"""Published speeds of kernels of fused attention, as they were printed, with their sources.

Every curve has 16,384 tokens and a hidden size of 2,048: batch = tokens / s, heads = hidden / dim.
FLOPs are 4 · keys · s · dim per head, half of it under a causal mask, 2.5 times as many backward.
The benchmarks launch a kernel 30 times in a row (flash_attn/utils/benchmark.py): bursts of 5 ms at
512 tokens, and of 100 to 400 ms forward and backward at 16,384, where the clock has begun to fall.
"""

from __future__ import annotations

from typing import NamedTuple

TOKENS, HIDDEN = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


class ThroughputCurve(NamedTuple):
    """TFLOP/s at each of ``LENGTHS``, for one kernel, mask and head dimension; 0: not readable."""

    gpu: str
    kernel: str  # as the source calls it
    phase: str  # forward, backward, or both
    causal: bool
    dim: int
    tflops: tuple[float, ...]


A100 = "Dao-AILab/flash-attention assets/flash2_a100_fwd_bwd_benchmark.png"
H100_BOTH = "Dao-AILab/flash-attention assets/flash2_h100_fwd_bwd_benchmark.png"
H100 = "forward: Dao-AILab/flash-attention assets/flash3_fp16_fwd.png; backward: "
H100 += "arXiv 2407.08608, figure 6"
OLD, TRITON, SECOND, THIRD = "FlashAttention", "Triton", "FlashAttention-2", "FlashAttention-3"

_FIGURES = {
    ("a100", OLD, "both"): {
        (64, False): (91, 92, 104, 108, 110, 110),
        (64, True): (58, 70, 77, 87, 92, 97),
        (128, False): (76, 72, 76, 80, 82, 83),
        (128, True): (55, 62, 69, 76, 80, 83),
    },
    ("a100", TRITON, "both"): {
        (64, False): (90, 102, 98, 98, 100, 100),
        (64, True): (59, 75, 79, 76, 79, 80),
        (128, False): (78, 85, 90, 93, 95, 95),
        (128, True): (50, 61, 68, 74, 78, 80),
    },
    ("a100", SECOND, "both"): {
        (64, False): (132, 153, 162, 171, 175, 176),
        (64, True): (88, 119, 140, 156, 165, 171),
        (128, False): (0, 173, 187, 196, 201, 203),
        (128, True): (99, 133, 155, 173, 182, 189),
    },
    ("h100", OLD, "both"): {
        (64, False): (157, 159, 161, 161, 166, 168),
        (64, True): (104, 123, 136, 138, 149, 156),
        (128, False): (127, 127, 128, 131, 137, 139),
        (128, True): (98, 109, 108, 126, 135, 137),
    },
    ("h100", SECOND, "both"): {
        (64, False): (215, 254, 274, 288, 294, 296),
        (64, True): (141, 192, 232, 257, 273, 284),
        (128, False): (248, 294, 320, 326, 335, 338),
        (128, True): (163, 221, 265, 294, 308, 328),
    },
    ("h100", SECOND, "forward"): {
        (64, False): (282, 306, 318, 321, 322, 324),
        (64, True): (180, 229, 262, 284, 295, 299),
        (128, False): (309, 350, 362, 368, 370, 370),
        (128, True): (191, 260, 298, 319, 333, 335),
        (256, False): (275, 313, 321, 323, 324, 326),
        (256, True): (208, 251, 278, 293, 297, 298),
    },
    ("h100", SECOND, "backward"): {
        (64, False): (198, 238, 264, 0, 0, 0),
        (128, False): (214, 260, 291, 310, 318, 322),
    },
    ("h100", THIRD, "forward"): {
        (64, False): (333, 392, 460, 476, 496, 497),
        (64, True): (197, 265, 371, 420, 460, 473),
        (128, False): (467, 565, 625, 638, 646, 648),
        (128, True): (292, 423, 521, 579, 602, 616),
        (256, False): (482, 0, 707, 736, 746, 756),
        (256, True): (286, 427, 537, 612, 628, 642),
    },
    ("h100", THIRD, "backward"): {
        (64, False): (272, 363, 422, 0, 0, 0),
        (128, False): (316, 424, 501, 542, 559, 561),
    },
    ("h100", "cuDNN", "forward"): {
        (64, False): (335, 373, 395, 408, 412, 413),
        (64, True): (225, 288, 334, 363, 379, 388),
        (128, False): (497, 574, 617, 609, 600, 595),
        (128, True): (315, 410, 484, 518, 529, 539),
        (256, False): (470, 546, 580, 581, 580, 581),
        (256, True): (308, 391, 450, 483, 497, 509),
    },
    ("h100", "cuDNN", "backward"): {
        (64, False): (266, 348, 395, 0, 0, 0),
        (128, False): (305, 408, 465, 499, 518, 516),
    },
}
FIGURES = tuple(
    ThroughputCurve(*of, causal, dim, speeds)
    for of, curves in _FIGURES.items()
    for (dim, causal), speeds in curves.items()
)
FLASH3_AGAIN = ThroughputCurve(
    "h100", THIRD, "forward", False, 128, (430.32, 517.099, 565.544, 590.233, 614.234, 620.73)
)
"""Another measurement of FlashAttention-3, not fitted: pytorch/benchmark, pull 2391."""


class Speed(NamedTuple):
    """TFLOP/s of one kernel, counted without what a mask leaves out."""

    heads: int  # of the whole batch
    sequence: int
    dim: int  # mean head dimension over the products
    tflops: float
    causal: bool = True


SIMUMAX = "causal sdp rows of MooreThreads/SimuMax configs/system at 4dcaae51, half of their FLOPs"
MLA_FORWARD, MLA_BACKWARD = 160, 166  # of queries and keys of 192 and values of 128
B200_FORWARD = (
    Speed(64, 4096, 128, 980.5), Speed(32, 4096, 128, 823.2), Speed(128, 4096, 128, 1121.2),
    Speed(128, 4096, MLA_FORWARD, 934.4), Speed(64, 4096, MLA_FORWARD, 995.9),
    Speed(32, 4096, MLA_FORWARD, 887.5), Speed(32, 4096, 128, 812.5),
    Speed(16, 32768, 128, 1311.1), Speed(8, 32768, 128, 1352.0),
)  # fmt: skip
B200_BACKWARD = (
    Speed(64, 4096, 128, 820.6), Speed(32, 4096, 128, 895.9), Speed(128, 4096, 128, 935.5),
    Speed(128, 4096, MLA_BACKWARD, 722.9), Speed(64, 4096, MLA_BACKWARD, 684.6),
    Speed(32, 4096, MLA_BACKWARD, 686.5), Speed(32, 4096, 128, 885.4),
    Speed(16, 32768, 128, 980.7), Speed(8, 32768, 128, 1074.2),
)  # fmt: skip
"""Rows that fill the GPU with kernels below 10 ms; a longer one is a burst by itself. How often
they were launched is not known."""
B200_AT_BOOST = (Speed(64, 8192, 128, 1534.8, causal=False), Speed(64, 8192, 128, 1418.1))
B200_BACKWARD_AT_BOOST = (Speed(64, 8192, 128, 1359.8, causal=False), Speed(64, 8192, 128, 1208.6))
"""FlashAttention-4 in kernels of 1 to 4 ms: Dao-AILab/flash-attention, pull 2280. The first twenty
launches of flashinfer's pull 2899 agree (1,425 and 1,450 forward); after 80 they are at 1,237."""

A100_PCIE_FORWARD = (
    Speed(64, 4096, 128, 185.2), Speed(32, 4096, 128, 174.5), Speed(16, 4096, 128, 154.1),
    Speed(32, 4096, 128, 176.6), Speed(16, 4096, 128, 154.6),
)  # fmt: skip
A100_PCIE_BACKWARD = (
    Speed(64, 4096, 128, 156.8), Speed(32, 4096, 128, 150.7), Speed(16, 4096, 128, 138.5),
    Speed(32, 4096, 128, 152.3), Speed(16, 4096, 128, 137.6),
)  # fmt: skip
"""The same source's A100 with 300 W over PCIe; held out."""
