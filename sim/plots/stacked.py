"""Stacked bars, one for each of several cases: the pieces that its seconds consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from sim.plots.style import UNITS, figure, unit_for

ROW = 0.42  # inches
THIN = 0.001  # of the longest bar: less than a dot
_LETTER = 0.0085  # of the longest bar: a letter in it, at most
_LETTERS = 115  # of a line of the legend


class Look(NamedTuple):
    """How a piece is filled."""

    colour: str
    hatch: str = ""


def stacked(
    rows: Mapping[str, Mapping[str, float]],
    looks: Mapping[str, Look],
    *,
    ends: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Draw a bar for each row of pieces in seconds, stacked in the order of ``looks``.

    At the end of a bar stands its text in ``ends``, or else its length. Pieces without a look are
    left out.
    """
    longest = max((fsum(row.values()) for row in rows.values()), default=1.0) or 1.0
    unit = unit_for(longest)
    made = figure(10.0, 1.3 + ROW * max(len(rows), 1))
    axes = made.add_subplot()
    left = [0.0] * len(rows)
    for piece, look in looks.items():
        wide = [UNITS[unit] * row.get(piece, 0.0) for row in rows.values()]
        said, edge = piece.replace("_", " "), "0.7" if look.hatch else "white"
        axes.barh(
            [*rows], wide, 0.62, left, label=said, color=look.colour, hatch=look.hatch,
            edgecolor=edge, lw=0 if look.hatch else 0.6,
        )  # fmt: skip
        _named(axes, said, look, left, wide, UNITS[unit] * longest)
        left = [start + more for start, more in zip(left, wide, strict=True)]
    for row, (name, pieces) in enumerate(rows.items()):
        said = (ends or {}).get(name, f"{UNITS[unit] * fsum(pieces.values()):.4g}")
        at = (left[row], row)
        axes.annotate(said, at, (4, 0), textcoords="offset points", va="center", parse_math=False)
    axes.invert_yaxis()
    room = 0.08 + 0.011 * max((len(said) - 6 for said in (ends or {}).values()), default=0)
    axes.set_xlim(0.0, (1.0 + room) * UNITS[unit] * longest)
    axes.set_xlabel(unit)
    axes.set_title(title, fontsize=11, loc="left", parse_math=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if looks:
        across = max(1, _LETTERS // (6 + max(map(len, looks))))
        made.legend(loc="outside lower center", ncols=across, frameon=False, fontsize=9)
    return made


def _named(
    axes: Axes, name: str, look: Look, left: Sequence[float], wide: Sequence[float], most: float
) -> None:
    """Write the name of a piece into it where there is room, so that grey print needs no legend."""
    least = _LETTER * (len(name) + 1) * most
    dark = float(np.dot((0.299, 0.587, 0.114), to_rgb(look.colour))) < 0.5
    for row, (start, width) in enumerate(zip(left, wide, strict=True)):
        if width > least:
            axes.text(
                start + width / 2, row, name, ha="center", va="center", fontsize=8,
                color="white" if dark else "black", parse_math=False,
                bbox={"fc": "white", "ec": "none", "pad": 1.5} if look.hatch else None,
            )  # fmt: skip
