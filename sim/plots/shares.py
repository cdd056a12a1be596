"""Where the time of a step goes: a stacked bar for each of several ways of running it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from sim.plots.style import COMPUTE, IDLE, OTHER, TRANSFERS, UNITS, figure, unit_for

_ROW = 0.42  # inches
_THIN = 0.001  # of the longest bar: less than a dot

Times = Mapping[str, Any]
"""``time_s`` of a summary: seconds of computing, of each exposed dimension, and of nothing."""


def shares(times: Mapping[str, Times], *, title: str = "") -> Figure:
    """Draw, by name, a rank's mean seconds of computing, of exposed communication and of nothing.

    A bar is as long as the step, and its end says how long that is.
    """
    rows = {name: _pieces(of) for name, of in times.items()}
    ends = [sum(row.values()) for row in rows.values()]
    longest = max(ends, default=1.0)
    unit = unit_for(longest)
    made = figure(10.0, 1.3 + _ROW * max(len(rows), 1))
    axes = made.add_subplot()
    left = [0.0] * len(rows)
    for piece, colour in _known(rows, _THIN * longest).items():
        wide = [UNITS[unit] * row.get(piece, 0.0) for row in rows.values()]
        hatch = "////" if piece == "idle" else ""
        axes.barh(
            [*rows], wide, 0.62, left, label=piece, color=colour, hatch=hatch, edgecolor="0.7", lw=0
        )
        left = [start + more for start, more in zip(left, wide, strict=True)]
    for row, end in enumerate(ends):
        said, at = f"{UNITS[unit] * end:.4g}", (left[row], row)
        axes.annotate(said, at, (4, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.08 * UNITS[unit] * longest)
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if rows:
        made.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return made


def _pieces(of: Times) -> dict[str, float]:
    exposed = {f"exposed {name}": spread["mean"] for name, spread in of["exposed"].items()}
    return {"computing": of["compute"]["mean"], **exposed, "idle": of["idle"]["mean"]}


def _known(rows: Mapping[str, Mapping[str, float]], least: float) -> dict[str, str]:
    """The colour of every piece of at least so many seconds, in the order of stacking."""
    there = {name for row in rows.values() for name, seconds in row.items() if seconds >= least}
    every = {"computing": COMPUTE} | {f"exposed {name}": one for name, one in TRANSFERS.items()}
    every |= dict.fromkeys(sorted(there - {*every, "idle"}), OTHER) | {"idle": IDLE}
    return {name: colour for name, colour in every.items() if name in there}
