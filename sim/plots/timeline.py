"""The picture of a step: one row per rank, with tall kernels and thin communication beneath them.

A transfer is a pale line as long as it only waits for a peer, and a bar once its data moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from schedules.input_error import InputError
from sim.analysis.activity import activities
from sim.analysis.relations import rendezvous
from sim.plots import critical
from sim.plots.memory import spread
from sim.plots.style import OTHER, PHASES, TRANSFERS, UNITS, figure, pale, unit_for
from sim.plots.tracks import BAR, TALL, THIN, View, kernels, transfers
from sim.timeline import Timeline

_ROWS = 32  # ranks drawn unless the caller names them
_WIDTH = 14.0  # inches
_KEYS = 9  # entries of the legend that fit side by side
_GAP = 0.25  # between two ranks, where the track of computing has a height of 0.62

NO_LINES: Mapping[str, Line2D] = {}


def timeline(
    of: Timeline,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    unit: str = "auto",
    title: str = "",
    path: DataFrame | None = None,
) -> Figure:
    """Draw ranks within a window of seconds; unless they are named, at most 32 spread over all.

    ``path``, of :func:`sim.analysis.path.path`, is drawn over them as the critical path. Raises
    InputError for a rank that was not simulated, an unknown unit or an empty window.
    """
    shown = _shown(of, ranks, _ROWS)
    view = _view(of, window, unit, shown)
    made = figure(_WIDTH, min(1.5 + 0.42 * _height(view) * len(shown), 40.0))
    key = _ranks(made.add_subplot(), view, shown, title)
    made.axes[0].set_xlabel(unit_for(view.high - view.low) if unit == "auto" else unit)
    line = path is not None and critical.draw(made.axes[0], view, shown, _height(view), path)
    legend(made, [key], {"critical path": line} if line else {})
    return made


class Key(NamedTuple):
    """The things that the legend of a picture has to explain."""

    phases: dict[str, None]
    tracks: dict[str, str]
    waits: bool  # something waits for a peer


def add_timeline(
    axes: Axes, of: Timeline, *, window: tuple[float, float], rows: int, title: str
) -> Key:
    """Draw at most ``rows`` ranks, spread over all, into the axes of a larger picture."""
    shown = _shown(of, None, rows)
    view = _view(of, window, "auto", shown)
    axes.set_xlabel(unit_for(view.high - view.low))
    return _ranks(axes, view, shown, title)


def _shown(of: Timeline, ranks: Sequence[int] | None, rows: int) -> list[int]:
    there = of.graph.ranks().tolist()
    shown = spread(there, rows) if ranks is None else list(ranks)
    if missing := [rank for rank in shown if rank not in there]:
        raise InputError(
            f"rank {missing[0]} was not simulated; there are {there[0]} to {there[-1]}"
        )
    return shown


def _height(view: View) -> float:
    return TALL + THIN * len(view.tracks) + _GAP


def _ranks(axes: Axes, view: View, shown: Sequence[int], title: str) -> Key:
    phases: dict[str, None] = {}
    waits = False
    for row, rank in enumerate(shown):
        found, waited = _draw(axes, view, rank, -row * _height(view))
        phases, waits = phases | found, waits | waited
    _frame(axes, view, shown, _height(view), title)
    return Key(phases, view.tracks, waits)


def _view(
    of: Timeline, window: tuple[float, float] | None, unit: str, shown: Sequence[int]
) -> View:
    if unit != "auto" and unit not in UNITS:
        raise InputError(f"no unit {unit!r}; there are auto, {', '.join(UNITS)}")
    low, high = window or (float(of.start.min(initial=np.inf)), float(of.end.max(initial=0.0)))
    if window is not None and not low < high:
        raise InputError(f"the window {low:g} to {high:g} s is empty; give start < end")
    if not len(of.graph):
        low, high = 0.0, 1.0
    high = high if low < high else low + 1.0
    kinds = activities(of.graph)
    codes = np.unique(kinds.code[np.isin(of.graph.rank, shown)])
    used = {kinds.names[k] for k in codes if k > 1}
    order = [*(name for name in TRANSFERS if name in used), *sorted(used - {*TRANSFERS})]
    tracks = {name: TRANSFERS.get(name, OTHER) for name in order}
    scale = UNITS[unit_for(high - low) if unit == "auto" else unit]
    return View(of, kinds, rendezvous(of)[1], tracks, low, high, scale)


def _draw(axes: Axes, view: View, rank: int, top: float) -> tuple[dict[str, None], bool]:
    """Draw a rank's tracks below ``top``; return the phases that occur, and whether one waits."""
    of = view.timeline
    seen = (of.graph.rank == rank) & (of.end > view.low) & (of.start < view.high)
    ops = np.flatnonzero(seen)
    bottom = top - TALL
    lows = view.low * view.scale
    highs = min(view.high, float(of.end.max(initial=view.low))) * view.scale
    idle = [(lows, bottom), (lows, top), (highs, top), (highs, bottom)]
    hatched = PolyCollection([idle], facecolors="white", edgecolors="0.85", hatch="////", lw=0.0)
    axes.add_collection(hatched, autolim=False)
    computes = ops[view.kinds.code[ops] == 0]
    found, waits = kernels(axes, view, computes, bottom), False
    for k, (name, colour) in enumerate(view.tracks.items(), 1):
        mine = ops[view.kinds.code[ops] == view.kinds.names.index(name)]
        waits |= transfers(axes, view, mine, bottom - k * THIN + (THIN - BAR) / 2, colour)
    return found, waits


def _named(view: View, rank: int) -> str:
    """Return the name of a row: its rank, and how many ranks it stands for, as in "rank 0 x 8"."""
    alike = view.timeline.graph.stands_for.get(rank, 1)
    return f"rank {rank} x {alike:,}" if alike > 1 else f"rank {rank}"


def _frame(axes: Axes, view: View, shown: Sequence[int], height: float, title: str) -> None:
    """Set the limits and the names of the ranks, and remove what is not needed."""
    axes.set_xlim(view.low * view.scale, view.high * view.scale)
    axes.set_ylim(-height * max(len(shown), 1) + _GAP / 2, _GAP / 2)
    axes.set_yticks([-row * height - TALL / 2 for row in range(len(shown))])
    axes.set_yticklabels([_named(view, rank) for rank in shown], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)


def legend(made: Figure, keys: Sequence[Key], lines: Mapping[str, Line2D] = NO_LINES) -> None:
    """Draw one legend for all that the pictures of a figure show."""
    phases = {name for key in keys for name in key.phases}
    tracks = {name: colour for key in keys for name, colour in key.tracks.items()}
    waits = any(key.waits for key in keys)
    known = [(PHASES[name][0], PHASES[name][1]) for name in PHASES if name in phases]
    known += list(tracks.items())
    key: dict[str, Patch | Line2D | tuple[Line2D, ...]] = {
        n: Patch(facecolor=colour) for n, colour in known
    }
    if waits:
        tints = tuple(
            Line2D([], [], color=pale(one), lw=2.0, solid_capstyle="butt")
            for one in tracks.values()
        )
        key["waiting for a peer"] = tints
    key["no computing"] = Patch(facecolor="white", edgecolor="0.7", hatch="////")
    key |= lines
    made.legend(
        handles=list(key.values()),
        labels=list(key),
        loc="outside lower center",
        ncols=len(key) if len(key) <= _KEYS else -(-len(key) // 2),
        frameon=False,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )
