"""A picture of step time against memory, in which ways that no other beats stand out.

Points are numbered by time, and a list beside the picture says which way each number is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import cos, pi, sin
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim import units
from sim.plots.style import figure

_PLANE = 6.5, 5.0  # inches of the picture beside the list
_LINE = 0.155  # inches, of the list
_LETTER = 0.066  # inches, of the list's letters
_LETTERS = 44  # of a name
_BEST, _OTHER = "#1f6fb4", "0.6"


class Point(NamedTuple):
    """One way in the plane of time and memory."""

    name: str
    seconds: float
    bytes: float  # of the rank that needs most


class Box(NamedTuple):
    """A rectangle of the picture, in points of 1/72 inch: its middle and half its sides."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        """Return whether the two overlap.

        >>> Box(0, 0, 2, 2).meets(Box(3, 3, 2, 2)), Box(0, 0, 2, 2).meets(Box(3, 5, 2, 2))
        (True, False)
        """
        apart = abs(self.x - other.x), abs(self.y - other.y)
        return apart[0] < self.width + other.width and apart[1] < self.height + other.height


def frontier(
    points: Sequence[Point],
    *,
    capacity: float | None = None,
    title: str = "",
    what: str = "peak memory",
) -> Figure:
    """Draw step time against memory; a line joins the points that no other beats in both.

    ``capacity`` is the memory of a GPU in bytes; ``what`` says which memory the points have.
    """
    ordered, best = sorted(points, key=lambda point: point.seconds), best_of(points)
    lines = listed(ordered)
    made, axes = _page(lines)
    for k, point in enumerate(ordered):
        colour = _BEST if point in best else _OTHER
        axes.plot(point.seconds, point.bytes / 2**30, "o", ms=5, color=colour, zorder=3)
        at = 1.0 - (k + 0.5) * _LINE / (made.get_figheight() - 1.0)
        axes.text(
            1.03, at, lines[k], transform=axes.transAxes, family="monospace", fontsize=7.5,
            va="center", color="black" if point in best else "0.35", parse_math=False,
        )  # fmt: skip
    line = np.array([(point.seconds, point.bytes / 2**30) for point in best]).reshape(-1, 2)
    axes.plot(line[:, 0], line[:, 1], color=_BEST, lw=1.0, zorder=2)
    axes.margins(0.12)
    taken = [] if capacity is None else [_limit(axes, capacity)]
    axes.set(xlabel="step time, s", ylabel=f"{what}, GiB")
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    _number(axes, ordered, taken)
    return made


def listed(points: Sequence[Point]) -> list[str]:
    """Return a line for each point: its number, name, time and memory, in columns.

    >>> listed([Point("zb_v", 0.25, 19.2 * 2**30), Point("gpipe", 0.5, 9 * 2**30)])
    [' 1 zb_v     0.25 s   19.2 GiB', ' 2 gpipe     0.5 s      9 GiB']
    """
    names = [p.name if len(p.name) <= _LETTERS else f"{p.name[: _LETTERS - 3]}..." for p in points]
    width = max(map(len, names), default=0)
    return [
        f"{k:2} {name:{width}}  {p.seconds:6.4g} s {p.bytes / 2**30:6.3g} GiB"
        for k, (name, p) in enumerate(zip(names, points, strict=True), 1)
    ]


def best_of(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point equals in both and beats in one, by time.

    >>> best_of([Point("a", 1.0, 9.0), Point("b", 2.0, 5.0), Point("c", 3.0, 6.0)])
    [Point(name='a', seconds=1.0, bytes=9.0), Point(name='b', seconds=2.0, bytes=5.0)]
    """
    out: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.bytes)):
        if not out or point.bytes < out[-1].bytes:
            out.append(point)
    return out


def _page(lines: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with room for the plane and, to its right, for the list."""
    width, height = _PLANE[0], max(_PLANE[1], len(lines) * _LINE)
    right = max(map(len, lines), default=0) * _LETTER + 0.4
    made = figure(0.9 + width + right, height + 1.0)
    made.set_layout_engine("none")
    whole = made.get_figwidth(), made.get_figheight()
    axes = made.add_axes((0.9 / whole[0], 0.6 / whole[1], width / whole[0], height / whole[1]))
    return made, axes


def _limit(axes: Axes, capacity: float) -> Box:
    """Draw the line of a GPU's memory; return the place of its label."""
    said = f"GPU: {units.size(capacity)}"
    axes.axhline(capacity / 2**30, color="black", ls="--", lw=1.0)
    axes.autoscale_view()
    axes.annotate(
        said, (1.0, capacity / 2**30), xycoords=("axes fraction", "data"),
        xytext=(-2, 3), textcoords="offset points", ha="right", fontsize=8,
    )  # fmt: skip
    right, _ = _points(axes, axes.get_xlim()[1], 0.0)
    _, height = _points(axes, 0.0, capacity / 2**30)
    wide = 2.4 * len(said)
    return Box(right - 2 - wide, height + 7, wide, 5)


def _number(axes: Axes, points: Sequence[Point], taken: list[Box]) -> None:
    """Write each point's number beside it, clear of other numbers and points."""
    axes.autoscale_view()
    places = [_points(axes, point.seconds, point.bytes / 2**30) for point in points]
    boxes = [*taken, *(Box(x, y, 3.5, 3.5) for x, y in places)]
    for k, (point, (x, y)) in enumerate(zip(points, places, strict=True), 1):
        size = 2.6 * len(str(k)), 4.0
        free = (
            box
            for dx, dy in _offsets()
            if not any(other.meets(box := Box(x + dx, y + dy, *size)) for other in boxes)
        )
        box = next(free)
        boxes.append(box)
        away = box.x - x, box.y - y
        line = {"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 3.0}
        far = away[0] ** 2 + away[1] ** 2 > 12.0**2
        axes.annotate(
            str(k), (point.seconds, point.bytes / 2**30), xytext=away,
            textcoords="offset points", ha="center", va="center", fontsize=7.5,
            arrowprops=line if far else None,
        )  # fmt: skip


def _offsets() -> Iterator[tuple[float, float]]:
    """Yield offsets from a point, in points of 1/72 inch: near ones first, up and right first."""
    for radius, k in product(range(9, 400, 4), range(16)):
        angle = pi / 4 + k * pi / 8
        yield radius * cos(angle), radius * sin(angle)


def _points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return a place of the plane in points of 1/72 inch."""
    right, up = axes.transData.transform((x, y)) * 72.0 / axes.figure.dpi
    return float(right), float(up)
