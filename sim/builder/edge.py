"""The collectives at the edges of what a strategy splits."""

from __future__ import annotations

from typing import NamedTuple


class Edge(NamedTuple):
    """The collectives where an operator's tensor enters or leaves a split region; "" for none."""

    before: str = ""  # before its forward, on the input
    after: str = ""  # after its forward, on the output
    before_backward: str = ""  # before its backward, on the gradient of the output
    after_backward: str = ""  # after its backward, on the gradient of the input
    again: str = ""  # before its weight gradient, on the saved input
    axis: str = "tp"  # axis of the ranks that take part
