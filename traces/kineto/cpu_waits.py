"""Finds when a thread of a CPU run waits for gloo's collectives; none of its operators says so.

It waits inside operators of torch.distributed. It also waits wherever a collective of its rank ends
while no operator that computes is innermost, since a blocking call stands between operators. That
wait lasts from the collective's begin or the last operator's, whichever is later, to the
collective's end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.analysis.intervals import Intervals, union
from sim.graph import Bools, Longs

COLLECTIVE = re.compile(r"^c10d::|^_?c10d_functional::|wait_tensor|record_param_comms")
_HOST = """
view as_strided as_strided_ t transpose permute reshape _unsafe_view _reshape_alias expand expand_as
view_as slice select narrow unsqueeze unsqueeze_ squeeze squeeze_ flatten unflatten chunk split
split_with_sizes unsafe_split unbind detach detach_ alias diagonal empty empty_like empty_strided
new_empty new_empty_strided new_zeros new_ones zeros zeros_like ones ones_like full full_like
scalar_tensor resize_ resize_as_ set_ linear matmul to _to_copy contiguous clone item
_local_scalar_dense is_nonzero result_type resolve_conj resolve_neg lift_fresh layer_norm conj
scaled_dot_product_attention _scaled_dot_product_attention_math is_same_size zero_ stack numpy_T mT
movedim swapaxes real unfold is_floating_point
"""
_CALLS = frozenset(_HOST.split())  # of aten: views, allocations, and those that others work for


class Pieces(NamedTuple):
    """A thread's time, cut where its innermost operator changes."""

    owner: Longs  # row of the innermost operator, -1 between operators
    start: Longs
    end: Longs
    parent: Longs  # by operator, not by piece: row of the one around it, or -1


def computes(name: str) -> bool:
    """Return whether an operator's own time is computing or copying, rather than calls and views.

    >>> [computes(name) for name in ("aten::mm", "aten::view", "AddmmBackward0")]
    [True, False, False]
    """
    space, _, rest = name.partition("::")
    return space == "aten" and rest not in _CALLS


def pieces(start: Longs, end: Longs, low: int, high: int) -> Pieces:
    """Cut [low, high) by nested operators; one that outlasts the one around it is cut there.

    >>> [column.tolist() for column in pieces(np.array([1, 2]), np.array([5, 3]), 0, 6)]
    [[-1, 0, 1, 0, -1], [0, 1, 2, 3, 5], [1, 2, 3, 5, 6], [-1, 0]]
    """
    parent = np.full(len(start), -1, np.int64)
    out: list[tuple[int, int, int]] = []
    open_: list[tuple[int, int]] = [(-1, high)]
    at = low

    def until(instant: int) -> None:
        nonlocal at
        if instant > at:
            out.append((open_[-1][0], at, instant))
            at = instant

    for row in np.lexsort((-end, start)).tolist():
        begin = min(max(int(start[row]), low), high)
        while len(open_) > 1 and open_[-1][1] <= begin:
            until(open_[-1][1])
            open_.pop()
        until(begin)
        parent[row] = open_[-1][0]
        open_.append((row, min(int(end[row]), open_[-1][1])))
    while open_:
        until(open_[-1][1])
        open_.pop()
    columns = np.array(out, np.int64).reshape(-1, 3).T
    return Pieces(columns[0], columns[1], columns[2], parent)


def computing(of: Pieces, names: Sequence[str]) -> Bools:
    """Return, per operator, whether its own time is computing.

    An operator computes if it is PyTorch's and neither a call nor a view. One that calls Python, as
    those of a DTensor do, only hands on to another of its name.
    """
    foreign = np.array([not name.startswith("aten::") for name in names], bool)
    out = np.array([computes(name) for name in names], bool)
    out[of.parent[foreign & (of.parent >= 0)]] = False
    return out


def may_wait(of: Pieces, names: Sequence[str]) -> Bools:
    """Return, per piece, whether its thread can stand still in it.

    It can between operators, and in operators around others. ``names`` are the operators'.
    PyTorch's own operators without others inside them compute, or make a view.
    """
    aten = np.array([name.startswith("aten::") for name in names], bool)
    around = np.zeros(len(names), bool)
    around[of.parent[of.parent >= 0]] = True
    return np.append(~computing(of, names) & (around | ~aten), True)[of.owner]


def _blocks(of: Pieces, standing: Bools, end: Longs) -> Bools:
    """Return, per piece, whether a collective ends in it or before the thread computes again.

    If the thread goes on after a call, it did not wait for it.
    """
    rows = np.arange(len(of.start))
    busy = np.where(standing, len(rows), rows)
    until = np.minimum.accumulate(busy[::-1])[::-1]
    stop = np.append(of.start, of.end[-1:] + 1)[until]
    ends = np.sort(end)
    found: Bools = np.searchsorted(ends, stop) > np.searchsorted(ends, of.start)
    return found


def waiting(of: Pieces, names: Sequence[str], start: Longs, end: Longs) -> Intervals:
    """Return when the thread waits, given begins and ends of the collectives of its rank."""
    inside = np.array([bool(COLLECTIVE.search(name)) for name in names] + [False])[of.owner]
    standing = may_wait(of, names)
    called = np.array([name.startswith("c10d::") for name in names] + [False])[of.owner]
    inside &= ~called | _blocks(of, standing, end)
    at = np.searchsorted(of.start, end, "left") - 1
    over = (at >= 0) & (len(of.end) > 0)
    over[over] = (end[over] <= of.end[at[over]]) & standing[at[over]]
    since = np.maximum(of.start[at[over]], start[over])
    return union(
        np.concatenate((of.start[inside], since)), np.concatenate((of.end[inside], end[over]))
    )
