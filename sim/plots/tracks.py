"""The tracks of one rank in the picture of a step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from numpy.typing import NDArray

from sim import graph as graphs
from sim.analysis.activity import Activities
from sim.analysis.intervals import covered_before, union
from sim.builder.template import BESIDE
from sim.graph import Bools, Floats, Longs
from sim.plots.bars import Bars, bars, in_turn, rasterise, rectangles, surrounded
from sim.plots.style import DARK, PHASES, pale
from sim.timeline import Timeline

TALL, THIN = 0.62, 0.15  # heights of the track of computing and of each transfer's
BAR = 0.12  # of a transfer in its track
_DOTS = 1900.0  # of the axes, at 150 per inch: what is less than one of them cannot be seen
_LETTER = 9.5  # dots that a letter of a label takes
_MARGIN = 4.0  # dots beside a label
_BACKWARD = "RIW"  # phases that take turns, layer by layer
_BETWEEN = ("O", "")  # what a backward also has: gradients are scaled and copied as they come
_NARROW = 12.0  # dots: narrower bars that take turns become bands


class View(NamedTuple):
    """The timeline that is drawn, and the scale of the picture."""

    timeline: Timeline
    kinds: Activities
    moves: Floats  # per op: since when its data moves (seconds); before that it waits for a peer
    tracks: dict[str, str]  # activity -> colour, of the transfers that occur
    low: float  # seconds
    high: float
    scale: float  # unit of the axis per second

    @property
    def pixel(self) -> float:
        """The seconds that one dot is wide."""
        return (self.high - self.low) / _DOTS


def kernels(axes: Axes, view: View, ops: Longs, bottom: float) -> dict[str, None]:
    """Draw kernels; those of a pair that run side by side have half of the track each."""
    of = view.timeline
    second = np.array([stream.endswith(BESIDE) for stream in of.graph.streams])
    beside = second[of.graph.stream[ops]]
    if not beside.any():
        return _bars(axes, view, ops, bottom)
    both = union(of.start[ops[beside]], of.end[ops[beside]])
    busy = Bars(both.start, both.end, np.zeros(len(both.start), np.int64))
    add(axes, view, busy, bottom, TALL, "white", edge=False)
    paired = (covered_before(both, of.end[ops]) > covered_before(both, of.start[ops])) & ~beside
    found = _bars(axes, view, ops[~beside & ~paired], bottom)
    found |= _bars(axes, view, ops[paired], bottom + TALL / 2, TALL / 2)
    return found | _bars(axes, view, ops[beside], bottom, TALL / 2)


def _bars(axes: Axes, view: View, ops: Longs, bottom: float, tall: float = TALL) -> dict[str, None]:
    """Draw bars by phase, stage and microbatch, with the microbatch where there is room."""
    of, graph = view.timeline, view.timeline.graph
    task = (graph.stage[ops].astype(np.int64) + 1 << 40) + (graph.microbatch[ops].astype(np.int64))
    look = (task << 3) + graph.phase[ops]
    found = bars(of.start[ops], of.end[ops], look, view.pixel)
    phase = graph.phase[ops[found.first]]
    backward, between = (_in(phase, names) for names in (_BACKWARD, _BETWEEN))
    group = surrounded(np.where(backward, task[found.first], -1), between)
    run = in_turn(found, group, _NARROW * view.pixel, view.pixel)
    turns = found.where(run >= 0)
    _bands(axes, view, turns, run[run >= 0], ops, bottom, tall)
    found = rasterise(found.where(run < 0), look[found.first][run < 0], view.pixel)
    drawn = graph.phase[ops[found.first]]
    for k in np.unique(drawn):
        some = found.where(drawn == k)
        name = graphs.PHASES[k]
        add(axes, view, some, bottom, tall, PHASES[name][1], edge=True)
        ink = "white" if name in DARK else "black"
        _number(axes, view, some, ops[some.first], bottom + tall / 2, ink)
    return {graphs.PHASES[k]: None for k in np.unique(phase)}


def _in(phase: NDArray[np.int8], names: Iterable[str]) -> Bools:
    """Return a flag per kernel: its phase is one of these."""
    return np.isin(phase, [graphs.PHASES.index(name) for name in names])


def transfers(axes: Axes, view: View, ops: Longs, bottom: float, colour: str) -> bool:
    """Draw the bars of one dimension: pale lines while a peer is missing, solid while data moves.

    Return whether any of them waits long enough to be seen.
    """
    of = view.timeline
    start, moves, end = of.start[ops], view.moves[ops], of.end[ops]
    waits = _stretches(start, moves, view.pixel)
    add(axes, view, waits, bottom + 0.33 * BAR, 0.34 * BAR, pale(colour), edge=False)
    add(axes, view, _stretches(moves, end, view.pixel), bottom, BAR, colour, edge=False)
    return bool((moves - start > view.pixel).any())


def _stretches(start: Floats, end: Floats, pixel: float) -> Bars:
    """Return bars of the stretches that take any time, merged where no gap can be seen."""
    some = end > start
    return bars(start[some], end[some], np.zeros(int(some.sum()), np.int64), pixel)


def _bands(
    axes: Axes, view: View, turns: Bars, run: Longs, ops: Longs, bottom: float, tall: float
) -> None:
    """Draw kernels of a backward that take turns too fast to see: one bar with a band per phase.

    The height of a band is the phase's share of the seconds.
    """
    if not len(run):
        return
    begins = np.flatnonzero(np.diff(run, prepend=-1))
    bar = Bars(turns.start[begins], np.maximum.reduceat(turns.end, begins), turns.first[begins])
    kinds, row = len(graphs.PHASES), np.repeat(np.arange(len(begins)), np.diff([*begins, len(run)]))
    cell = row * kinds + view.timeline.graph.phase[ops[turns.first]]
    seconds = np.bincount(cell, turns.end - turns.start, kinds * len(begins))
    share = seconds.reshape(-1, kinds) / seconds.reshape(-1, kinds).sum(axis=1, keepdims=True)
    top = bottom + tall * (1 - np.cumsum(share, axis=1) + share)
    for k, name in enumerate(graphs.PHASES):
        some, height = share[:, k] > 0, tall * share[:, k]
        if some.any():
            low, high = (top[:, k] - height)[some], height[some]
            add(axes, view, bar.where(some), low, high, PHASES[name][1], edge=False)
    _number(axes, view, bar, ops[bar.first], bottom + tall / 2, "white")


def add(
    axes: Axes,
    view: View,
    some: Bars,
    bottom: float | Floats,
    height: float | Floats,
    colour: str,
    *,
    edge: bool,
) -> None:
    """Draw bars of one colour, with a white edge where they are wide enough for one."""
    if not len(some.start):
        return
    corners = rectangles(some, bottom, height, view.scale)
    wide = some.end - some.start > 6 * view.pixel  # an edge around less would be all one sees
    widths = np.where(wide, 0.5, 0.0) if edge else 0.0
    edges = np.where(wide, "white", colour).tolist() if edge else colour
    drawn = PolyCollection(
        list(corners), facecolors=colour, edgecolors=edges, linewidths=widths, zorder=2
    )
    axes.add_collection(drawn, autolim=False)


def _number(axes: Axes, view: View, some: Bars, ops: Longs, centre: float, colour: str) -> None:
    """Write in each bar the longest label that fits: 2F0 where a rank has several stages, or 0."""
    graph = view.timeline.graph
    chunks = len(np.unique(graph.stage[ops])) > 1
    left, right = np.maximum(some.start, view.low), np.minimum(some.end, view.high)
    middle = (left + right) / 2 * view.scale
    letters = ((right - left) / view.pixel - _MARGIN) / _LETTER
    for k in np.flatnonzero((letters >= 1) & (graph.microbatch[ops] >= 0)):
        op = graph.op(int(ops[k]))
        labels = [f"{op.stage}{op.phase}{op.microbatch}"] * chunks + [str(op.microbatch)]
        if fits := [label for label in labels if len(label) <= letters[k]]:
            axes.text(
                middle[k],
                centre,
                fits[0],
                color=colour,
                fontsize=7,
                ha="center",
                va="center_baseline",
                clip_on=True,
                zorder=3,
            )
