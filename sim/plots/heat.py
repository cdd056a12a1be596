"""A matrix of ranks, each in the colour of its number, such as how much it slows the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sim.plots.style import figure

_COLOURS = LinearSegmentedColormap.from_list("slow", ["#f2f4f6", "#e8853d", "#7d1f3a"])
_WRITTEN = 200  # cells at most into which their number is written
_LETTER = 0.09  # inches that a letter of the title takes
_TICKS = 16  # labels of an axis at most


def heat(
    values: NDArray[np.float64],
    rows: Sequence[int],
    columns: Sequence[int],
    *,
    row: str,
    column: str,
    says: str,
    least: float = 1.0,
    title: str = "",
) -> Figure:
    """Draw a cell for each of ``values`` (rows, columns).

    ``row``, ``column`` and ``says`` are the labels of rows, columns and colours. Colours begin at
    ``least``, so that no cell stands out where all are alike.
    """
    width = max(2.8 + 0.55 * min(len(columns), 32), 0.8 + _LETTER * len(title))
    made = figure(width, 1.6 + 0.34 * min(len(rows), 40))
    axes = made.add_subplot()
    top = max(float(values.max(initial=least)), least * 1.01)
    drawn = axes.imshow(values, cmap=_COLOURS, vmin=least, vmax=top, aspect="auto")
    for axis, labels in ((axes.xaxis, columns), (axes.yaxis, rows)):
        every = -(-len(labels) // _TICKS) or 1
        axis.set_ticks(range(0, len(labels), every), [str(one) for one in labels[::every]])
    axes.set(xlabel=column, ylabel=row)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if values.size <= _WRITTEN:
        for (y, x), value in np.ndenumerate(values):
            dark = value > (least + top) / 2
            colour = "white" if dark else "black"
            axes.text(x, y, f"{value:.4g}", ha="center", va="center", fontsize=8, color=colour)
    made.colorbar(drawn, ax=axes, label=says, pad=0.02)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    return made
