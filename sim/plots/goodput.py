"""Where the time of training runs goes: steps, and what failures and checkpoints add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.plots.stacked import Look
from sim.plots.style import COMPUTE, figure

LOOKS = {
    "steps": Look(COMPUTE),
    "slow_steps": Look("#f3dd8b"),
    "checkpoints": Look("#1f6fb4"),
    "lost_work": Look("#c23b5e"),
    "detection": Look("#e9a13b"),
    "restart": Look("#5b2a86"),
    "waiting": Look("white", "////"),
}
NAMES = {"waiting": "waiting for a spare"}
ROW = 0.42  # inches


def goodput(
    runs: Mapping[str, Mapping[str, float]],
    *,
    ends: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Draw two bars for each run: its seconds by what they went to, whole, and without steps.

    Both are in percent of the run. At the end of the first stands its text in ``ends``.
    """
    made = figure(10.0, 1.9 + 2.0 * ROW * len(runs))
    whole, rest = made.subplots(2, 1)
    shares = {
        name: {part: 100.0 * value / fsum(of.values()) for part, value in of.items()}
        for name, of in runs.items()
    }
    parts = [part for part in LOOKS if any(of.get(part, 0.0) for of in shares.values())]
    _bars(whole, shares, parts)
    _bars(rest, shares, parts[1:])
    for row, name in enumerate(shares):
        whole.annotate(
            (ends or {}).get(name, ""), (100.0, row), (4, 0), textcoords="offset points",
            va="center", parse_math=False,
        )  # fmt: skip
    whole.set_xlim(0.0, 100.0 + 1.2 * max(map(len, (ends or {"": ""}).values())))
    whole.set_xticks(range(0, 101, 20))
    whole.set_title(title, fontsize=11, loc="left", parse_math=False)
    rest.set_title("the same without steps", fontsize=10, loc="left")
    rest.set_xlabel("% of the run")
    handles, labels = whole.get_legend_handles_labels()
    made.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    return made


def _bars(axes: Axes, shares: Mapping[str, Mapping[str, float]], parts: Sequence[str]) -> None:
    """Stack the parts of each run."""
    left = [0.0] * len(shares)
    for part in parts:
        wide, look = [of.get(part, 0.0) for of in shares.values()], LOOKS[part]
        axes.barh(
            [*shares], wide, 0.62, left, label=NAMES.get(part, part.replace("_", " ")),
            color=look.colour, hatch=look.hatch, edgecolor="0.6" if look.hatch else "white", lw=0.6,
        )  # fmt: skip
        left = [begin + more for begin, more in zip(left, wide, strict=True)]
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
