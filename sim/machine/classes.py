"""Classes of numbers: which are equal, and the first of each, without sorting where few differ."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
FEW = 32
"""So many different numbers are looked for one after another; more are sorted."""


class Classes(NamedTuple):
    """Which of some things are alike."""

    of: NDArray[np.int32]  # per thing: its class
    first: Integers  # per class: the place of its first thing


def by_code(code: Integers, most: int) -> Classes:
    """Return the classes of equal codes, which are from 0 to ``most``."""
    if most > 4 * len(code):
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return Classes(which.astype(np.int32), first)
    there = np.zeros(most + 1, np.bool_)
    there[code] = True
    of = np.asarray(np.cumsum(there) - 1, np.int32)[code]
    first = np.empty(int(there.sum()), np.int64)
    first[of[::-1]] = np.arange(len(code))[::-1]
    return Classes(of, first)


def firsts(values: NDArray[np.uint64]) -> Integers:
    """Return the place of the first of each value, in any order."""
    left, out = np.arange(len(values)), list[int]()
    while len(left) and len(out) < FEW:
        out.append(int(left[0]))
        left = left[values[left] != values[left[0]]]
    _, more = np.unique(values[left], return_index=True)
    return np.array([*out, *left[more].tolist()], np.int64)


def one_row(rows: NDArray[np.generic]) -> bool:
    """Return whether all rows are equal."""
    return bool(np.all(rows == rows[:1]))
