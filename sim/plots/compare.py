"""The timelines of several ways of running one job, under each other on one axis."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from sim.plots.style import figure
from sim.plots.timeline import add_timeline, legend
from sim.timeline import Timeline


def timelines(ways: Mapping[str, Timeline], *, rows: int = 8, title: str = "") -> Figure:
    """Draw each timeline, at most ``rows`` ranks of it, on one time axis."""
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
