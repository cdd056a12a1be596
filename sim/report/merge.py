"""Blocks of neighbouring ops, for timelines of more ops than a browser can draw.

Ops of one row (a rank's stream), one look (phase or dimension) and one slice of time become a block
from the first start to the last end. Slices grow until the blocks are few enough. If the widest
slices leave too many, looks are mixed, and in the end ranks are left out, evenly over all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats, Ints, Longs

MOST = 400_000
"""The blocks of a page at most, with which a pan takes less than 100 ms and the file 25 MB."""
_FINEST, _COARSEST = 1 << 18, 1 << 10  # slices of the span


class Blocks(NamedTuple):
    """The blocks that are drawn: ops in the order of rows, and where each block begins."""

    order: Longs  # ops, by row and start
    begins: Longs  # one more than there are blocks

    def __len__(self) -> int:
        return len(self.begins) - 1

    @property
    def counts(self) -> Longs:
        """The number of ops in each block."""
        return np.diff(self.begins)


def blocks(row: Longs, look: Longs, start: Floats, end: Floats, most: int = MOST) -> Blocks:
    """Return blocks of ops: one op each, or slices as fine as ``most`` blocks allow.

    Blocks are in the order of rows; within a row, ops are in the order of their start. ``row``,
    ``look``, ``start`` and ``end`` have one value per op. No rank is left out here.
    """
    order = np.lexsort((end, start, row))
    if len(order) <= most:
        return Blocks(order, np.arange(len(order) + 1))
    zero, span = start.min(), max(float(end.max() - start.min()), 1e-300)
    at, of, kind = (start[order] - zero) / span, row[order], look[order]
    for mixed in (False, True):
        slices = _FINEST
        while slices >= _COARSEST:
            found = _begins(of, kind * (not mixed), np.floor(at * slices))
            if len(found) <= most or (mixed and slices == _COARSEST):
                return Blocks(order, np.append(found, len(order)))
            slices //= 2
    raise AssertionError("the last slices are taken as they are")


def _begins(*keys: NDArray[np.generic]) -> Longs:
    """Return the rows at which any of the keys changes."""
    change = np.zeros(len(keys[0]), np.bool_)
    change[:1] = True
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(change)


def some_ranks(ranks: Ints, most: int) -> Ints:
    """Return at most ``most`` of the ranks, evenly spread, the first and the last among them.

    >>> some_ranks(np.arange(10, dtype=np.int32), 4).tolist()
    [0, 3, 6, 9]
    """
    if len(ranks) <= most:
        return ranks
    return ranks[np.unique(np.linspace(0, len(ranks) - 1, most).astype(np.int64))]
