"""Where the time of a step goes: a stacked bar for each of several ways of running it."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Any

from matplotlib.figure import Figure

from sim.plots.stacked import THIN, Look, stacked
from sim.plots.style import COMPUTE, IDLE, OTHER, TRANSFERS

Times = Mapping[str, Any]
"""The ``time_s`` of a summary: seconds of computing, of each exposed dimension, and of nothing."""


def shares(times: Mapping[str, Times], *, title: str = "") -> Figure:
    """Draw the mean seconds of a rank: computing, exposed communication, nothing; a bar per name.

    A bar is as long as the step, and at its end stands how long that is.
    """
    rows = {name: _pieces(of) for name, of in times.items()}
    longest = max((fsum(row.values()) for row in rows.values()), default=1.0)
    return stacked(rows, _known(rows, THIN * longest), title=title)


def _pieces(of: Times) -> dict[str, float]:
    exposed = {f"exposed {name}": spread["mean"] for name, spread in of["exposed"].items()}
    return {"computing": of["compute"]["mean"], **exposed, "nothing": of["empty"]["mean"]}


def _known(rows: Mapping[str, Mapping[str, float]], least: float) -> dict[str, Look]:
    """Return the look of every piece of at least ``least`` seconds, in the order of stacking."""
    there = {name for row in rows.values() for name, seconds in row.items() if seconds >= least}
    every = {"computing": COMPUTE} | {f"exposed {name}": one for name, one in TRANSFERS.items()}
    every |= dict.fromkeys(sorted(there - {*every, "nothing"}), OTHER) | {"nothing": IDLE}
    hatches = {"nothing": "////"}
    return {k: Look(one, hatches.get(k, "")) for k, one in every.items() if k in there}
