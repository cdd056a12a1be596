"""Breaks long names of a table's first column where people would."""

from __future__ import annotations

import re

from sim.late import cells


def folded(text: str, width: int) -> str:
    """Return the text in lines of at most ``width`` letters, which end at spaces or underscores.

    A piece without either that is longer stays whole.

    >>> folded("lf_h100_80gb_70b_s2048_n256", 18).split()
    ['lf_h100_80gb_70b_', 's2048_n256']
    """
    lines = [""]
    for piece in re.findall(r"[^ _]*[ _]*", text):
        if lines[-1] and cells.cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip(" ") for line in lines)
