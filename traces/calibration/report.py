"""Writes the page that says how well the constants fit: ``validation/calibration.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.table import markdown, table
from traces.calibration import tables as measured
from traces.calibration.calibrate import Calibration

REPORT = f"""# How well the constants fit

Made by `traincast calibrate GPU --write` for a100, h100, h200 and b200 from
{measured.PACKAGE} and the figures in `traces/calibration`; no step time went in.
Errors are of predicted against measured time: mean of the absolute error, mean signed error, 90th
percentile, maximum. GEMM rows: m from 1,024, n and k from 512, m in whole tiles. Rows that begin
with "check" were not fitted. A kind with one row is read off that row, so it fits exactly.
Memory-bound kernels of H100, H200 and B200 are those of `traces/calibration/memory_kernels.csv`;
what a GPU has no row for, such as softmax and embedding, has the share of another.

Attention: by kernel, at the clock of the figures. They are launched 30 times in a row: bursts of 5
ms at 512 tokens, and of 100 to 400 ms at 16,384, where the clock has begun to fall. On B200 the
rows of SimuMax are compared after a factor by which its machine is slower than a GPU at full clock.

FP8: the frameworks quantise the operand of m rows first, in kernels that the rows include. The fit
finds them, as bytes of it that are moved beside the multiplication and a longer launch, and leaves
them out of the constants; the share of the HBM bandwidth and the launch are those of bf16.
All-reduces between nodes: without trees, rings count, and NVLS trees between whole nodes. Over 10
nodes trees change little; over 2 to 512 nodes of Alps, another network, priced as a DGX H100, small
ones take a multiple of the measured time without trees and come out at half of it with them.
Collectives between nodes of other machines are in [collectives.md](collectives.md).
"""
COLLECTIVES = """Inside a node: time = base + rounds · hop + wire bytes / (nominal · share).
"simple" is fitted from 4 MiB up, "low latency" up to 1 MiB.
"""


def report(calibrations: Sequence[Calibration]) -> str:
    """Return all errors and fits of collectives as two tables of Markdown."""
    errors = [(c.gpu, *error) for c in calibrations for error in c.errors]
    fits = [(c.gpu, name, fit) for c in calibrations for name, fit in c.collectives.items()]
    shares = [(name, None, ".1 %") for name in ("mean", "bias", "p90", "max")]
    kinds = table(errors, "GPU", "family", "rows", *shares, left=True)
    collectives = table(
        fits,
        "GPU",
        "collective",
        ("base", lambda row: f"{row[2]['base'] * 1e6:.1f} us"),
        ("hop", lambda row: f"{row[2]['hop'] * 1e6:.2f} us"),
        ("share of the link, by group size", 2, _shares),
        left=True,
    )
    return "\n".join([REPORT, markdown(kinds), "", COLLECTIVES, markdown(collectives), ""])


def _shares(fit: Mapping[str, float]) -> str:
    return ", ".join(f"{k[6:]}: {v:.3f}" for k, v in fit.items() if k[:6] == "share_")
