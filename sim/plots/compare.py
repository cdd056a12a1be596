"""Several ways of running one job: their timelines under each other, and time against memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from sim.plots.style import figure
from sim.plots.timeline import add_timeline, legend
from sim.timeline import Timeline


class Point(NamedTuple):
    """One way in the plane of time and memory."""

    name: str
    seconds: float
    bytes: float  # at the peak of the rank that holds most


def timelines(ways: Mapping[str, Timeline], *, rows: int = 8, title: str = "") -> Figure:
    """Draw each timeline (at most ``rows`` ranks of it) on one time axis, by name."""
    last = max((float(one.end.max(initial=0.0)) for one in ways.values()), default=1.0)
    made = figure(14.0, min(1.2 + 2.4 * max(len(ways), 1), 60.0))
    axes = made.subplots(max(len(ways), 1), sharex=True, squeeze=False)[:, 0]
    keys = [
        add_timeline(axis, one, window=(0.0, last), rows=rows, title=name)
        for axis, (name, one) in zip(axes, ways.items(), strict=False)
    ]
    for axis in axes[:-1]:
        axis.set_xlabel("")
    if keys:
        legend(made, keys)
    made.suptitle(title, x=0.01, ha="left", fontsize=12)
    return made


def frontier(points: Sequence[Point], *, capacity: float | None = None, title: str = "") -> Figure:
    """Draw step time against peak memory; a line joins those that no other beats in both.

    ``capacity`` is the bytes that a GPU has.
    """
    made = figure(9.0, 5.5)
    axes = made.add_subplot()
    best = best_of(points)
    for point in points:
        ahead = point in best
        axes.plot(
            point.seconds, point.bytes / 2**30, "o", color="#1f6fb4" if ahead else "0.6", zorder=3
        )
        axes.annotate(
            point.name,
            (point.seconds, point.bytes / 2**30),
            xytext=(6, 5),
            textcoords="offset points",
            fontsize=8,
            parse_math=False,
        )
    line = np.array([(point.seconds, point.bytes / 2**30) for point in best]).reshape(-1, 2)
    axes.plot(line[:, 0], line[:, 1], color="#1f6fb4", lw=1.0, zorder=2)
    if capacity is not None:
        axes.axhline(capacity / 2**30, color="black", ls="--", lw=1.0)
    axes.set(xlabel="step time, s", ylabel="peak memory, GiB")
    axes.set_title(title, fontsize=11, loc="left")
    axes.margins(0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    return made


def best_of(points: Sequence[Point]) -> list[Point]:
    """Those that no other point is as good as in both and better in one, by time.

    >>> best_of([Point("a", 1.0, 9.0), Point("b", 2.0, 5.0), Point("c", 3.0, 6.0)])
    [Point(name='a', seconds=1.0, bytes=9.0), Point(name='b', seconds=2.0, bytes=5.0)]
    """
    out: list[Point] = []
    for point in sorted(points, key=lambda point: (point.seconds, point.bytes)):
        if not out or point.bytes < out[-1].bytes:
            out.append(point)
    return out
