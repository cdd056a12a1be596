"""Curves of one number against another, a line for each of several cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import cycle
from typing import Literal

from matplotlib.figure import Figure

from sim.plots.style import LINES, figure

_MARKS = "osD^vP"
Scale = Literal["linear", "log"]


def curves(
    lines: Mapping[str, Mapping[float, float]],
    *,
    x: str,
    y: str,
    scales: tuple[Scale, Scale] = ("linear", "linear"),
    title: str = "",
) -> Figure:
    """Draw a line for each name: ``lines`` has its y values by x.

    ``x`` and ``y`` are the labels of the axes, with units. A linear axis of y begins at 0, so that
    heights can be compared.
    """
    made = figure(9.0, 4.2)
    axes = made.add_subplot()
    styles = zip(cycle(LINES), cycle(_MARKS), strict=False)  # without end
    for (name, line), (colour, mark) in zip(lines.items(), styles, strict=False):
        axes.plot([*line], [*line.values()], color=colour, marker=mark, ms=4.5, lw=1.5, label=name)
    axes.set(xlabel=x, ylabel=y, xscale=scales[0], yscale=scales[1])
    if scales[0] == "log":
        ticks = _few({value for line in lines.values() for value in line})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.minorticks_off()
    if scales[1] == "linear":
        axes.set_ylim(0.0, 1.08 * max((max(line.values()) for line in lines.values()), default=1.0))
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(lines) > 1:
        made.legend(loc="outside right upper", frameon=False, fontsize=9)
    return made


def _few(values: Iterable[float]) -> list[float]:
    """Return values to write at a logarithmic axis: ascending, each at least 1.5 times the last.

    >>> _few([4.0, 1.0, 1.2, 2.0])
    [1.0, 2.0, 4.0]
    """
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value >= 1.5 * kept[-1]:
            kept.append(value)
    return kept
