"""From one step time to another: a bar for each cause that grew or shrank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from math import fsum

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.style import UNITS, figure, unit_for

WHOLE, MORE, LESS = "#5a6b7b", "#d0681c", "#1f7a58"
LEAST = 0.002  # of the longer step: smaller parts are drawn together


def waterfall(
    before: float,
    after: float,
    parts: Mapping[str, float],
    *,
    names: tuple[str, str] = ("before", "after"),
    title: str = "",
) -> Figure:
    """Draw both steps and, between them, each part from where the one before ended; in seconds."""
    scale_name = unit_for(max(before, after))
    scale = UNITS[scale_name]
    shown = {k: v for k, v in parts.items() if abs(v) >= LEAST * max(before, after)}
    if rest := fsum(v for k, v in parts.items() if k not in shown):
        shown["all else"] = rest
    made = figure(max(6.0, 1.6 + 0.95 * (len(shown) + 2)), 4.6)
    axes, level = made.add_subplot(), before
    axes.bar(0, before * scale, color=WHOLE, width=0.7)
    for k, value in enumerate(shown.values(), 1):
        axes.bar(
            k, value * scale, 0.7, level * scale, color=MORE if value > 0 else LESS, align="center"
        )
        axes.plot([k - 1.35, k + 0.35], [level * scale] * 2, color="0.5", lw=0.7)
        top = max(level, level + value) * scale
        axes.annotate(
            f"{value * scale:+.3g}", (k, top), (0, 2), textcoords="offset points", ha="center",
            fontsize=8,
        )  # fmt: skip
        level += value
    last = len(shown) + 1
    axes.plot([last - 1.35, last + 0.35], [level * scale] * 2, color="0.5", lw=0.7)
    axes.bar(last, after * scale, color=WHOLE, width=0.7)
    for at, value in ((0, before), (last, after)):
        axes.annotate(
            f"{value * scale:.4g}", (at, value * scale), (0, 2), textcoords="offset points",
            ha="center", fontsize=8,
        )  # fmt: skip
    labels = [names[0], *(re.sub("[ _]", "\n", name) for name in shown), names[1]]
    axes.set_xticks(range(last + 1), labels, fontsize=8, parse_math=False)
    axes.set_ylabel(scale_name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    _zoom(axes, [after, *accumulate(shown.values(), initial=before)], scale)
    return made


def _zoom(axes: Axes, levels: list[float], scale: float) -> None:
    """Begin the axis above zero, and say so, if all bars would look alike otherwise."""
    low, high = min(levels) * scale, max(levels) * scale
    if high > low > 0.8 * high:
        axes.set_ylim(low - (high - low) * 0.35, high + (high - low) * 0.12)
        axes.set_xlabel("the axis does not begin at zero", fontsize=8)
    else:
        axes.set_ylim(0, high * 1.1)
