"""Values that options take as text: ``0,4-7``, ``0.5:1.5``, ``F=5,I=4``."""

from __future__ import annotations

import math

TIMES = {"F": 1.0, "I": 1.0, "W": 1.0, "p2p": 0.0}
"""Seconds of a stage's forward, input gradient and weight gradient, and of a transfer."""


def ranks(text: str) -> list[int]:
    """The ranks of a list of numbers and ranges, ends included.

    >>> ranks("0,4-6")
    [0, 4, 5, 6]
    """
    out: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            raise ValueError(f"--ranks takes ranks such as 0,4-7, and not {text!r}")
        out += range(int(first), int(last or first) + 1)
    return sorted(set(out))


def window(text: str) -> tuple[float, float]:
    """Two instants in seconds.

    >>> window("0.5:1.5")
    (0.5, 1.5)
    """
    first, _, last = text.partition(":")
    try:
        begin, end = float(first), float(last)
    except ValueError:
        begin, end = math.nan, math.nan
    if not 0 <= begin < end < math.inf:
        raise ValueError(f"--window takes FROM:TO in seconds, such as 0.5:1.5, and not {text!r}")
    return begin, end


def times(text: str) -> dict[str, float]:
    """Seconds per kind of step, over the defaults of 1, 1, 1 and no time for transfers.

    >>> times("F=5,I=4")
    {'F': 5.0, 'I': 4.0, 'W': 1.0, 'p2p': 0.0}
    """
    out = dict(TIMES)
    for part in filter(None, text.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if key not in TIMES or not 0 <= seconds < math.inf or (key != "p2p" and seconds == 0):
            raise ValueError(
                f"--times takes positive seconds such as F=5,I=4,W=3,p2p=0, and not {part!r}"
            )
        out[key] = seconds
    return out
