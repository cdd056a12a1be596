"""The picture of a step: one row per rank, computing tall, communication thin beneath it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sim.analysis.activity import activities
from sim.plots.bars import bars
from sim.plots.lanes import TALL, THIN, View, add, compute
from sim.plots.memory import spread
from sim.plots.style import PHASES, TRANSFERS, UNITS, figure, unit_for
from sim.timeline import Timeline

_ROWS = 32  # ranks drawn unless the caller names them
_WIDTH = 14.0  # inches
_GAP = 0.25  # between two ranks, where the lane of computing has a height of 0.62

Rows = NDArray[np.int64]


def timeline(
    of: Timeline,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    unit: str = "auto",
    title: str = "",
) -> Figure:
    """Draw ranks (at most 32 spread over all unless named) within a window of seconds.

    Raises ValueError for a rank that was not simulated, an unknown unit or an empty window.
    """
    there = of.graph.ranks().tolist()
    shown = spread(there, _ROWS) if ranks is None else list(ranks)
    if missing := [rank for rank in shown if rank not in there]:
        raise ValueError(
            f"rank {missing[0]} was not simulated; there are {there[0]} to {there[-1]}"
        )
    view = _view(of, window, unit, shown)
    height = TALL + THIN * len(view.lanes) + _GAP
    made = figure(_WIDTH, min(1.5 + 0.42 * height * len(shown), 40.0))
    axes = made.add_subplot()
    phases: dict[str, None] = {}
    for row, rank in enumerate(shown):
        phases |= _draw(axes, view, rank, -row * height)
    _frame(axes, view, shown, height, title)
    unit = unit_for(view.high - view.low) if unit == "auto" else unit
    axes.set_xlabel(unit)
    key = _key(view, phases)
    made.legend(handles=key, loc="outside lower center", ncols=min(len(key), 11), frameon=False)
    return made


def _view(
    of: Timeline, window: tuple[float, float] | None, unit: str, shown: Sequence[int]
) -> View:
    if unit != "auto" and unit not in UNITS:
        raise ValueError(f"no unit {unit!r}; there are auto, {', '.join(UNITS)}")
    low, high = window or (float(of.start.min(initial=np.inf)), float(of.end.max(initial=0.0)))
    if window is not None and not low < high:
        raise ValueError(f"the window {low:g} to {high:g} s is empty; give start < end")
    if not len(of.graph):
        low, high = 0.0, 1.0
    high = high if low < high else low + 1.0
    kinds = activities(of.graph)
    codes = np.unique(kinds.code[np.isin(of.graph.rank, shown)])
    used = {kinds.names[k] for k in codes if k > 1}
    order = [*(name for name in TRANSFERS if name in used), *sorted(used - {*TRANSFERS})]
    lanes = {name: TRANSFERS.get(name, "#444444") for name in order}
    scale = UNITS[unit_for(high - low) if unit == "auto" else unit]
    return View(of, kinds, lanes, low, high, scale)


def _draw(axes: Axes, view: View, rank: int, top: float) -> dict[str, None]:
    """One rank's lanes below ``top``; returns the phases that occur."""
    of = view.timeline
    seen = (of.graph.rank == rank) & (of.end > view.low) & (of.start < view.high)
    ops = np.flatnonzero(seen)
    bottom = top - TALL
    lows, highs = view.low * view.scale, view.high * view.scale
    idle = [(lows, bottom), (lows, top), (highs, top), (highs, bottom)]
    hatched = PolyCollection([idle], facecolors="white", edgecolors="0.85", hatch="////", lw=0.0)
    axes.add_collection(hatched, autolim=False)
    computes = ops[view.kinds.code[ops] == 0]
    found = compute(axes, view, computes, bottom)
    for k, (name, colour) in enumerate(view.lanes.items(), 1):
        mine = ops[view.kinds.code[ops] == view.kinds.names.index(name)]
        low = bottom - k * THIN
        shown = bars(of.start[mine], of.end[mine], np.zeros(len(mine), np.int64), view.pixel)
        add(axes, view, shown, low + 0.02, THIN - 0.03, colour, edge=False)
    return found


def _frame(axes: Axes, view: View, shown: Sequence[int], height: float, title: str) -> None:
    """Limits, the names of the ranks, and nothing that is not needed."""
    axes.set_xlim(view.low * view.scale, view.high * view.scale)
    axes.set_ylim(-height * max(len(shown), 1) + _GAP / 2, _GAP / 2)
    axes.set_yticks([-row * height - TALL / 2 for row in range(len(shown))])
    axes.set_yticklabels([f"rank {rank}" for rank in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")


def _key(view: View, phases: dict[str, None]) -> list[Patch]:
    known = [(PHASES[name][0], PHASES[name][1]) for name in PHASES if name in phases]
    known += list(view.lanes.items())
    key = [Patch(facecolor=colour, label=name) for name, colour in known]
    return [*key, Patch(facecolor="white", edgecolor="0.7", hatch="////", label="no computing")]
