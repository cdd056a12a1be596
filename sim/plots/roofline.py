"""Kernels under the roof of their GPU: their rate against arithmetic intensity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.style import KERNELS, OTHER, figure

_MARKS = dict(zip(KERNELS, "osD^v<>PXh", strict=False))
_LARGE = 420.0  # square points: of a kernel that takes all the time
_SMALL = 14.0


def roofline(
    kernels: pd.DataFrame, peak: Mapping[str, float], bandwidth: float, *, title: str = ""
) -> Figure:
    """Draw the rows of :func:`sim.analysis.roofline.roofline`; larger marks take more of the time.

    ``peak`` has the FLOP/s of each dtype, of which those that kernels use are drawn; ``bandwidth``
    is in B/s. Kernels without FLOPs or bytes have no place on logarithmic axes and are left out.
    """
    some = kernels[(kernels["intensity"] > 0) & (kernels["flops_per_s"] > 0)]
    made = figure(9.0, 5.0)
    axes = made.add_subplot(xscale="log", yscale="log")
    whole = float(kernels["total_s"].sum()) or 1.0
    for kind, rows in some.groupby("kind", sort=False):
        axes.scatter(
            rows["intensity"], rows["flops_per_s"] / 1e12, label=str(kind).replace("_", " "),
            s=_SMALL + _LARGE * rows["total_s"] / whole, marker=_MARKS.get(str(kind), "*"),
            color=KERNELS.get(str(kind), OTHER), edgecolors="0.25", linewidths=0.6, zorder=3,
        )  # fmt: skip
    used = {name: value for name, value in peak.items() if name in set(some["dtype"])}
    _roofs(axes, some["intensity"].to_numpy(float), used or dict(peak), bandwidth)
    axes.set(xlabel=f"FLOPs per byte of memory traffic{_others(kernels, bandwidth)}")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(some):
        key = made.legend(loc="outside right upper", frameon=False, fontsize=9)
        for handle in key.legend_handles:
            handle.set_sizes([45.0])  # type: ignore[union-attr]
    return made


def _others(kernels: pd.DataFrame, bandwidth: float) -> str:
    """Return a note on the kernels that the picture leaves out, which only move bytes."""
    rest = kernels[(kernels["flops"] <= 0) & (kernels["bytes"] > 0)]
    seconds, whole = float(rest["total_s"].sum()), float(kernels["total_s"].sum())
    if not seconds:
        return ""
    speed = float((rest["bytes"] * rest["count"]).sum()) / seconds
    return (
        f"\nnot drawn: kernels without FLOPs, {seconds / whole:.0%} of the time, "
        f"at {speed / bandwidth:.0%} of the memory's bandwidth"
    )


def _roofs(axes: Axes, intensity: np.ndarray, peak: Mapping[str, float], bandwidth: float) -> None:
    """Draw each dtype's roof: the memory's bandwidth up to its ridge, the peak beyond it."""
    ridges = [rate / bandwidth for rate in peak.values()]
    low = min([*intensity.tolist(), *(0.1 * ridge for ridge in ridges)]) / 2
    high = max([*intensity.tolist(), *ridges]) * 4
    for name, rate in peak.items():
        ridge = rate / bandwidth
        heights = np.array([low * bandwidth, rate, rate]) / 1e12
        axes.plot([low, ridge, high], heights, color="0.2", lw=1.3, zorder=2)
        said = f"{name}: {rate / 1e12:,.4g} TFLOP/s"
        axes.annotate(
            said, (high, rate / 1e12), (0, 3), textcoords="offset points", ha="right", fontsize=8
        )
    axes.annotate(
        f"memory: {bandwidth / 1e12:,.3g} TB/s", (low, low * bandwidth / 1e12), (4, 0),
        textcoords="offset points", fontsize=8, va="top",
    )  # fmt: skip
    axes.set_xlim(low, high)
