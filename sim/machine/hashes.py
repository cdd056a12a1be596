"""Hashes of numbers in columns; a sum of hashes is one of a multiset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]


def mix(key: Hashes) -> Hashes:
    """Return a hash of each number (splitmix64)."""
    key = key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def mixed(rows: NDArray[np.int64], seed: int = 0) -> Hashes:
    """Return a hash of each row of numbers in order, shape (rows,)."""
    place = mix(np.arange(rows.shape[1], dtype=np.uint64) + np.uint64(seed << 32))
    out: Hashes = np.add.reduce(mix(rows.astype(np.uint64) ^ place), axis=1)
    return out


def multisets(rows: NDArray[np.int64]) -> Hashes:
    """Return a hash of each row of numbers in any order, shape (rows,)."""
    out: Hashes = np.add.reduce(mix(rows.astype(np.uint64)), axis=1)
    return out
