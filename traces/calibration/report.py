"""Writes the page that says how well the constants fit: ``validation/calibration.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from traces.calibration import tables as measured
from traces.calibration.errors import FitError

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


class Fitted(Protocol):
    """What the page needs from a calibration."""

    @property
    def gpu(self) -> str:
        """The kind of GPU."""

    @property
    def collectives(self) -> Mapping[str, Mapping[str, float]]:
        """The constants by collective and protocol."""

    @property
    def errors(self) -> tuple[FitError, ...]:
        """The errors of all families."""


def report(calibrations: Sequence[Fitted]) -> str:
    """Return all errors and fits of collectives as two tables of Markdown."""
    out = [
        REPORT,
        "| GPU | family | rows | mean | bias | p90 | max |",
        "|---|---|---|---|---|---|---|",
        *(row for c in calibrations for row in _errors(c)),
        "",
        COLLECTIVES,
        "| GPU | collective | base | hop | share of the link, by group size |",
        "|---|---|---|---|---|",
        *(row for c in calibrations for row in _collectives(c)),
    ]
    return "\n".join(out) + "\n"


def _errors(c: Fitted) -> Iterator[str]:
    for e in c.errors:
        percent = " | ".join(f"{100 * value:.1f} %" for value in e[2:])
        yield f"| {c.gpu} | {e.family} | {e.rows} | {percent} |"


def _collectives(c: Fitted) -> Iterator[str]:
    for name, fit in c.collectives.items():
        shares = ", ".join(f"{k[6:]}: {v:.3f}" for k, v in fit.items() if k[:6] == "share_")
        latency = f"{fit['base'] * 1e6:.1f} us | {fit['hop'] * 1e6:.2f} us"
        yield f"| {c.gpu} | {name} | {latency} | {shares} |"
