"""What does it cost to add a weight gradient to an fp32 main gradient, beside its multiplication?

Source: A100 PCIe 80 GB (1,935 GB/s), rows of SimuMax configs/system (GitHub MooreThreads/SimuMax,
4dcaae51), each fourth of its pairs over 4,096 tokens: the forward multiplication (layout TN, 16-bit
result) and the weight gradient of the same sizes (NT, added to fp32). The same arithmetic takes
longer by the traffic of reading and writing fp32 in place of writing 16 bits, 6 bytes an element:
it comes when a tile is done, so little of it hides behind arithmetic. Input gradients (NN) take as
long as the forward. B200 pairs of the same source give 0.81; none of a Hopper GPU are public.
"""

from __future__ import annotations

import numpy as np

from traces.calibration.errors import Fit, fit_error

BANDWIDTH = 1935e9  # B/s
TOKENS = 4096
EXTRA = 6.0  # bytes per element

PAIRS = (  # rows and columns of the gradient, TFLOP/s forward, TFLOP/s of the weight gradient
    (1536, 5120, 245.8, 194.8),
    (5120, 16384, 233.8, 224.3),
    (5120, 3072, 223.9, 210.4),
    (7168, 16384, 231.6, 223.6),
    (7168, 2048, 212.6, 196.1),
    (28672, 4096, 230.0, 222.3),
    (4096, 2048, 212.8, 187.9),
    (4096, 1024, 192.2, 145.5),
    (768, 4096, 238.8, 226.2),
    (16128, 4096, 229.2, 216.4),
    (8192, 28672, 232.3, 222.0),
    (28672, 8192, 232.3, 220.7),
    (8192, 2048, 211.8, 214.6),
    (1280, 8192, 206.7, 212.9),
    (16128, 8192, 233.8, 219.5),
)


def fit() -> Fit:
    """Return the share of that traffic's time that a weight gradient takes longer.

    That time is at full bandwidth. The share is the median over the pairs, and the same for every
    GPU. The error is that of the weight gradient's time, given the forward's.
    """
    rows, columns, forward, backward = np.array(PAIRS, np.float64).T
    flops = 2e-12 * TOKENS * rows * columns
    before, after = flops / forward, flops / backward
    traffic = EXTRA * rows * columns / BANDWIDTH
    share = float(np.median((after - before) / traffic))
    error = fit_error("weight gradient added in fp32", before + share * traffic, after)
    return Fit({"accumulate": share}, (error,))
