"""The critical path over the picture of a step: a dark line through the ops on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from sim.analysis.activity import COMPUTE
from sim.plots.tracks import BAR, TALL, THIN, View

COLOUR = "#111111"
_THICK, _THIN = 2.4, 0.7  # points: in a track, and from one track to another


def draw(axes: Axes, view: View, shown: Sequence[int], height: float, path: pd.DataFrame) -> Line2D:
    """Draw the rows of :func:`sim.analysis.path.path` on these ranks; return the legend's entry.

    The line is interrupted where the path runs through a rank that is not drawn.
    """
    seen = path[(path["end"] > view.low) & (path["start"] < view.high)]
    place = {rank: -row * height for row, rank in enumerate(shown)}
    level = np.array(
        [
            place.get(rank, np.nan) - _below(view, op)
            for rank, op in zip(seen["rank"], seen["op"], strict=True)
        ]
    )
    start = seen["start"].to_numpy(float) * view.scale
    end = seen["end"].to_numpy(float) * view.scale
    opens = np.flatnonzero(np.append(True, level[1:] != level[:-1])[: len(level)])
    closes = np.append(opens[1:], len(level))[: len(opens)] - 1
    along = [((start[a], level[a]), (end[b], level[a])) for a, b in zip(opens, closes, strict=True)]
    across = [
        ((end[a], level[a]), (start[a + 1], level[a + 1])) for a in closes[:-1] if len(closes) > 1
    ]
    for lines, width in ((across, _THIN), (along, _THICK)):
        some = [line for line in lines if np.isfinite(line).all()]
        collection = LineCollection(some, colors=COLOUR, linewidths=width, zorder=4)
        collection.set_capstyle("butt")
        axes.add_collection(collection, autolim=False)
    return Line2D([], [], color=COLOUR, lw=_THICK)


def _below(view: View, op: int) -> float:
    """Return how far below a rank's top the line runs: under kernels, through transfers."""
    name = view.kinds.names[view.kinds.code[op]]
    tracks = [*view.tracks]
    if name == COMPUTE or name not in tracks:
        return TALL - 0.05
    return TALL + (tracks.index(name) + 1) * THIN - (THIN - BAR) / 2 - BAR / 2
