"""The picture of a step: one row per rank, computing tall, communication thin beneath it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sim import graph as graphs
from sim.analysis.activity import Activities, activities
from sim.plots.bars import Bars, bars, in_turn, rasterise, rectangles
from sim.plots.memory import spread
from sim.plots.style import DARK, PHASES, TRANSFERS, UNITS, figure, unit_for
from sim.timeline import Timeline

_ROWS = 32  # ranks drawn unless the caller names them
_WIDTH = 14.0  # inches
_DOTS = 1900.0  # of the axes, at 150 per inch: what is less than one of them cannot be seen
_TALL, _THIN, _GAP = 0.62, 0.13, 0.25  # shares of a row, whose lanes are stacked
_LETTER = 9.5  # dots that a letter of a label takes
_BACKWARD = "RIW"  # phases that take turns, layer by layer
_NARROW = 12.0  # dots: narrower bars that take turns become bands

Rows = NDArray[np.int64]


class _View(NamedTuple):
    """What is drawn, and how large."""

    timeline: Timeline
    kinds: Activities
    lanes: dict[str, str]  # activity -> colour, of the transfers that occur
    low: float  # seconds
    high: float
    scale: float  # unit of the axis per second

    @property
    def pixel(self) -> float:
        return (self.high - self.low) / _DOTS


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
    height = _TALL + _THIN * len(view.lanes) + _GAP
    made = figure(_WIDTH, min(1.5 + 0.42 * height * len(shown), 40.0))
    axes = made.add_subplot()
    phases: dict[str, None] = {}
    for row, rank in enumerate(shown):
        phases |= _draw(axes, view, rank, -row * height)
    _frame(axes, view, shown, height, title)
    unit = unit_for(view.high - view.low) if unit == "auto" else unit
    axes.set_xlabel(unit)
    made.legend(handles=_key(view, phases), loc="outside lower center", ncols=9, frameon=False)
    return made


def _view(
    of: Timeline, window: tuple[float, float] | None, unit: str, shown: Sequence[int]
) -> _View:
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
    return _View(of, kinds, lanes, low, high, scale)


def _draw(axes: Axes, view: _View, rank: int, top: float) -> dict[str, None]:
    """One rank's lanes below ``top``; returns the phases that occur."""
    of = view.timeline
    seen = (of.graph.rank == rank) & (of.end > view.low) & (of.start < view.high)
    ops = np.flatnonzero(seen)
    bottom = top - _TALL
    lows, highs = view.low * view.scale, view.high * view.scale
    idle = [(lows, bottom), (lows, top), (highs, top), (highs, bottom)]
    hatched = PolyCollection([idle], facecolors="white", edgecolors="0.85", hatch="////", lw=0.0)
    axes.add_collection(hatched, autolim=False)
    computes = ops[view.kinds.code[ops] == 0]
    found = _compute(axes, view, computes, bottom)
    for k, (name, colour) in enumerate(view.lanes.items(), 1):
        mine = ops[view.kinds.code[ops] == view.kinds.names.index(name)]
        low = bottom - k * _THIN
        shown = bars(of.start[mine], of.end[mine], np.zeros(len(mine), np.int64), view.pixel)
        _add(axes, view, shown, low + 0.02, _THIN - 0.03, colour, edge=False)
    return found


def _compute(axes: Axes, view: _View, ops: Rows, bottom: float) -> dict[str, None]:
    """Bars by phase, stage and microbatch, with the microbatch where there is room."""
    of, graph = view.timeline, view.timeline.graph
    task = (graph.stage[ops].astype(np.int64) + 1 << 40) + (graph.microbatch[ops].astype(np.int64))
    look = (task << 3) + graph.phase[ops]
    found = bars(of.start[ops], of.end[ops], look, view.pixel)
    phase = graph.phase[ops[found.first]]
    backward = np.isin(phase, [graphs.PHASES.index(name) for name in _BACKWARD])
    run = in_turn(
        found, np.where(backward, task[found.first], -1), _NARROW * view.pixel, view.pixel
    )
    turns = Bars(*(column[run >= 0] for column in found))
    _bands(axes, view, turns, run[run >= 0], ops, bottom)
    found = rasterise(
        Bars(*(column[run < 0] for column in found)), look[found.first][run < 0], view.pixel
    )
    drawn = graph.phase[ops[found.first]]
    for k in np.unique(drawn):
        some = Bars(*(column[drawn == k] for column in found))
        name = graphs.PHASES[k]
        _add(axes, view, some, bottom, _TALL, PHASES[name][1], edge=True)
        ink = "white" if name in DARK else "black"
        _number(axes, view, some, ops[some.first], bottom, ink)
    return {graphs.PHASES[k]: None for k in np.unique(phase)}


def _bands(axes: Axes, view: _View, turns: Bars, run: Rows, ops: Rows, bottom: float) -> None:
    """Kernels of a backward pass that take turns too fast to see: one bar with a band per phase,
    as high as its share of the seconds."""
    phase = view.timeline.graph.phase[ops[turns.first]].astype(np.int64)
    for number in np.unique(run):
        mine = run == number
        seconds = np.bincount(phase[mine], turns.end[mine] - turns.start[mine], len(graphs.PHASES))
        bar = Bars(turns.start[mine][:1], turns.end[mine].max(keepdims=True), turns.first[mine][:1])
        low = bottom
        for k in np.flatnonzero(seconds)[::-1]:
            height = _TALL * seconds[k] / seconds.sum()
            _add(axes, view, bar, low, height, PHASES[graphs.PHASES[k]][1], edge=False)
            low += height
        _number(axes, view, bar, ops[bar.first], bottom, "white")


def _add(
    axes: Axes, view: _View, some: Bars, bottom: float, height: float, colour: str, *, edge: bool
) -> None:
    corners = rectangles(some, bottom, height, view.scale)
    wide = some.end - some.start > 6 * view.pixel  # an edge around less would be all one sees
    widths = np.where(wide, 0.5, 0.0) if edge else 0.0
    edges = np.where(wide, "white", colour).tolist() if edge else colour
    drawn = PolyCollection(
        list(corners), facecolors=colour, edgecolors=edges, linewidths=widths, zorder=2
    )
    axes.add_collection(drawn, autolim=False)


def _number(axes: Axes, view: _View, some: Bars, ops: Rows, bottom: float, colour: str) -> None:
    """Write in each bar the longest label that fits: 2F0 where a rank has several stages, or 0."""
    graph = view.timeline.graph
    chunks = len(np.unique(graph.stage[ops])) > 1
    left, right = np.maximum(some.start, view.low), np.minimum(some.end, view.high)
    middle = (left + right) / 2 * view.scale
    letters = ((right - left) / view.pixel - 6) / _LETTER
    for k in np.flatnonzero((letters >= 1) & (graph.microbatch[ops] >= 0)):
        op = graph.op(int(ops[k]))
        labels = [f"{op.stage}{op.phase}{op.microbatch}"] * chunks + [str(op.microbatch)]
        if fits := [label for label in labels if len(label) <= letters[k]]:
            axes.text(
                middle[k],
                bottom + _TALL / 2,
                fits[0],
                color=colour,
                fontsize=7,
                ha="center",
                va="center_baseline",
                clip_on=True,
                zorder=3,
            )


def _frame(axes: Axes, view: _View, shown: Sequence[int], height: float, title: str) -> None:
    """Limits, the names of the ranks, and nothing that is not needed."""
    axes.set_xlim(view.low * view.scale, view.high * view.scale)
    axes.set_ylim(-height * max(len(shown), 1) + _GAP / 2, _GAP / 2)
    axes.set_yticks([-row * height - _TALL / 2 for row in range(len(shown))])
    axes.set_yticklabels([f"rank {rank}" for rank in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left")


def _key(view: _View, phases: dict[str, None]) -> list[Patch]:
    known = [(PHASES[name][0], PHASES[name][1]) for name in PHASES if name in phases]
    known += list(view.lanes.items())
    key = [Patch(facecolor=colour, label=name) for name, colour in known]
    return [*key, Patch(facecolor="white", edgecolor="0.7", hatch="////", label="no computing")]
