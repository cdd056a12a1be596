"""The bars of one lane: ops that look like one are drawn as one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats


class Bars(NamedTuple):
    """Bars in one lane, ascending: where each is, and the row of the op that it begins with."""

    start: Floats
    end: Floats
    first: NDArray[np.int64]


def bars(start: Floats, end: Floats, look: NDArray[np.int64], pixel: float) -> Bars:
    """Merge neighbours of the same look with less than a pixel (in seconds) between them.

    >>> bars(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 9.0]), np.array([7, 7, 8]), 0.1)
    Bars(start=array([0., 2.]), end=array([2., 9.]), first=array([0, 2]))
    """
    order = np.argsort(start, kind="stable")
    if not len(order):
        return Bars(start, end, order)
    start, end, look = start[order], end[order], look[order]
    reach = np.maximum.accumulate(end)
    opens = np.append(True, (look[1:] != look[:-1]) | (start[1:] - reach[:-1] >= pixel))
    begins = np.flatnonzero(opens)
    return Bars(start[begins], np.maximum.reduceat(end, begins), order[begins])


def merge_small(of: Bars, colour: NDArray[np.int64], pixel: float) -> Bars:
    """Also merge bars narrower than a pixel with neighbours of the same colour."""
    if not len(of.start):
        return of
    small = of.end - of.start < pixel
    apart = (colour[1:] != colour[:-1]) | ~(small[1:] & small[:-1])
    begins = np.flatnonzero(np.append(True, apart | (of.start[1:] - of.end[:-1] >= pixel)))
    return Bars(of.start[begins], np.maximum.reduceat(of.end, begins), of.first[begins])


def rectangles(of: Bars, bottom: float, height: float, scale: float) -> Floats:
    """Corners (n, 4, 2) for a ``PolyCollection``; seconds are multiplied by ``scale``."""
    left, right = of.start * scale, of.end * scale
    low, high = np.full(len(left), bottom), np.full(len(left), bottom + height)
    corners = [(left, low), (left, high), (right, high), (right, low)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
