"""The bars of one track: ops that cannot be told apart are drawn as one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph import Bools, Floats, Longs


class Bars(NamedTuple):
    """The bars of one track: where each is, and the row of an op that it stands for."""

    start: Floats
    end: Floats
    first: Longs

    def where(self, mask: Bools) -> Bars:
        """Return only the bars that ``mask`` selects."""
        return Bars(self.start[mask], self.end[mask], self.first[mask])


def bars(start: Floats, end: Floats, look: Longs, pixel: float) -> Bars:
    """Merge neighbours of the same look that are less than a pixel (in seconds) apart.

    >>> bars(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 9.0]), np.array([7, 7, 8]), 0.1)
    Bars(start=array([0., 2.]), end=array([2., 9.]), first=array([0, 2]))
    """
    order = np.argsort(start, kind="stable")
    if not len(order):
        return Bars(start, end, order)
    start, end, look = start[order], end[order], look[order]
    reach = np.maximum.accumulate(end)
    opens = _changes(look)
    opens[1:] |= start[1:] - reach[:-1] >= pixel
    begins = np.flatnonzero(opens)
    return Bars(start[begins], np.maximum.reduceat(end, begins), order[begins])


def rasterise(of: Bars, look: Longs, pixel: float) -> Bars:
    """Replace bars narrower than a pixel by one per pixel, of the look with most seconds there.

    Where several looks have as many seconds, the lowest and the highest take turns. Neighbouring
    pixels of one look become one bar, so a track has no more bars than dots, however many kernels
    it has.
    """
    small = np.flatnonzero(of.end - of.start < pixel)
    if not len(small):
        return of
    column = np.floor((of.start[small] + of.end[small]) / 2 / pixel).astype(np.int64)
    order = np.lexsort((look[small], column))
    small, column = small[order], column[order]
    opens = _changes(column) | _changes(look[small])
    begins = np.flatnonzero(opens)  # of each (column, look)
    seconds = np.add.reduceat(of.end[small] - of.start[small], begins)
    turn = np.where(column[begins] % 2, -look[small[begins]], look[small[begins]])
    most = begins[np.lexsort((turn, -seconds, column[begins]))]
    small, column = small[most], column[most]
    small, column = small[_changes(column)], column[_changes(column)]
    runs = np.flatnonzero(_changes(look[small]) | (np.diff(column, prepend=column[0] - 2) != 1))
    last = np.append(runs[1:], len(small)) - 1
    wide = of.end - of.start >= pixel
    return Bars(
        np.append(of.start[wide], column[runs] * pixel),
        np.append(of.end[wide], (column[last] + 1) * pixel),
        np.append(of.first[wide], of.first[small[runs]]),
    )


def surrounded(group: Longs, may: Bools) -> Longs:
    """Return the groups, in which rows of ``may`` have that of their neighbours if both have one.

    The neighbours are the nearest rows before and after whose group is not negative.

    >>> group = np.array([7, -1, 7, -1, 8, -1])
    >>> surrounded(group, group < 0)
    array([ 7,  7,  7, -1,  8, -1])
    """
    known = np.flatnonzero(group >= 0)
    after = np.searchsorted(known, np.arange(len(group)))
    inside = np.flatnonzero(may & (after > 0) & (after < len(known)))
    left, right = group[known[after[inside] - 1]], group[known[after[inside]]]
    out = group.copy()
    out[inside] = np.where(left == right, right, group[inside])
    return out


def in_turn(of: Bars, group: Longs, width: float, pixel: float) -> Longs:
    """Return a number per bar for its run of neighbours of one group.

    The bars of a run are narrower than ``width`` seconds. Bars outside of such a run, or in one
    that is no wider than two pixels, get -1; so do those whose group is negative. The bars must be
    ascending.
    """
    if not len(group):
        return group
    joins = (of.end - of.start < width) & (group >= 0)
    opens = _changes(group)
    opens[1:] |= ~(joins[1:] & joins[:-1]) | (of.start[1:] - of.end[:-1] >= pixel)
    run = np.cumsum(opens) - 1
    begins = np.flatnonzero(opens)
    length = np.maximum.reduceat(of.end, begins) - of.start[begins]
    several = np.diff(np.append(begins, len(run))) > 1
    return np.where((several & (length > 2 * pixel))[run], run, -1)


def _changes(column: Longs) -> Bools:
    """Return a flag per row: it differs from the row before, or is the first."""
    return np.append(True, column[1:] != column[:-1])


def rectangles(of: Bars, bottom: float | Floats, height: float | Floats, scale: float) -> Floats:
    """Return corners (n, 4, 2) for a ``PolyCollection``; seconds are multiplied by ``scale``."""
    left, right = of.start * scale, of.end * scale
    low = np.broadcast_to(bottom, left.shape)
    high = low + height
    corners = [(left, low), (left, high), (right, high), (right, low)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
