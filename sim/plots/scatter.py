"""Predicted against measured times: how far are predictions off, and which runs are alike?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.style import LINES, figure

_SIZE = 8.4, 8.2  # inches
_MARKS = ("o", "s", "^")
BAND = 0.1
"""Half the width of the band around y = x, as a share."""


def scatter(series: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Draw pairs of measured and predicted seconds on logarithmic axes, a mark for each series.

    A line says where both are equal, and a band where they differ by 10 % at most.
    """
    made = figure(*_SIZE)
    axes = made.subplots()
    _band(axes, [second for points in series.values() for point in points for second in point])
    for k, (name, points) in enumerate(series.items()):
        colour, mark = LINES[k % len(LINES)], _MARKS[k // len(LINES) % len(_MARKS)]
        measured, predicted = zip(*points, strict=True)
        axes.plot(measured, predicted, mark, color=colour, ms=5, mew=0.4, mec="white", label=name)
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s")
    axes.set_box_aspect(1.0)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.legend(loc="lower right", fontsize=9)
    return made


def _band(axes: Axes, seconds: Sequence[float]) -> None:
    """Draw the line y = x and the band around it, over all the times."""
    ends = min(seconds) / 1.5, max(seconds) * 1.5
    low, high = ([end * (1.0 + side) for end in ends] for side in (-BAND, BAND))
    axes.fill_between(
        ends, low, high, color="0.88", lw=0, label=f"within {BAND:.0%}".replace("%", " %")
    )
    axes.plot(ends, ends, color="black", lw=0.8, label="predicted = measured")
    axes.set(xlim=ends, ylim=ends)
