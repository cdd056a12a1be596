"""A proof of which links of a network can never limit what runs on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.machine import columns
from sim.machine.columns import Columns, heights

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def limiting(of: Columns, back: Integers | None = None) -> Flags:
    """Return whether each link can ever hold a communication back, shape (links,).

    See :attr:`Cluster.limiting`. No route turns round at a NIC, which only passes on. Links are
    looked at from the highest to the GPUs, those of one height by index: at once where none of
    them hangs on another, else one after another. ``back``, if known, has for each link the one
    the other way.
    """
    height = heights(of)
    level = height[of.start] + height[of.end]
    level = level.astype(np.int8) if level.max(initial=0) < 128 else level
    sides = _Sides(of, columns.back(of) if back is None else back)
    for one in np.unique(level)[::-1].tolist():
        links = np.flatnonzero(level == one)
        fed, drained = sides.of(links)
        able = fed | drained
        links, fed, drained = links[able], fed[able], drained[able]
        if sides.apart(links, fed, drained):
            sides.drop(links)
            continue
        for some in links[:, None]:
            sides.drop(some[np.logical_or(*sides.of(some))])
    return ~sides.gone


class _Sides:
    """What feeds and what drains each node, and the links among that which were left out.

    A NIC is two nodes here, one for each way through it.
    """

    def __init__(self, of: Columns, back: Integers) -> None:
        nodes = len(of.gpu)
        half = np.where(of.up, nodes, 0)
        self.start = of.start + np.where(of.nic[of.start], half, 0)
        self.end = of.end + np.where(of.nic[of.end], half, 0)
        self.bandwidth, self.back = of.bandwidth, back
        self.gone = np.zeros(len(of.start), np.bool_)
        self.gpu = np.concatenate([of.gpu, np.zeros(nodes, np.bool_)])
        total = 2 * nodes
        self.fed = _sums(self.end, self.bandwidth, total)
        self.drained = _sums(self.start, self.bandwidth, total)
        self.fed_missing, self.drained_missing = np.zeros((2, total), np.int64)

    def of(self, links: Integers) -> tuple[Flags, Flags]:
        """Return whether each link may go for what feeds it, and for what drains it."""
        feeds, drains = self._own(links)
        return (
            self._within(links, self.start, self.fed, self.fed_missing, feeds),
            self._within(links, self.end, self.drained, self.drained_missing, drains),
        )

    def _own(self, links: Integers) -> tuple[Flags, Flags]:
        """Return whether the link back is among what feeds, and among what drains each link."""
        back = self.back[links]
        there = back >= 0
        return (
            there & (self.end[back] == self.start[links]),
            there & (self.start[back] == self.end[links]),
        )

    def _within(
        self,
        links: Integers,
        side: Integers,
        total: NDArray[np.float64],
        missing: Integers,
        own: Flags,
    ) -> Flags:
        """Return whether all links on a side, except the one back, are in and together fit.

        ``own`` says whether the link back is on that side.
        """
        node, back = side[links], self.back[links]
        whole = missing[node] == (own & self.gone[back])
        rest = total[node] - np.where(own, self.bandwidth[back], 0.0)
        fits = rest <= self.bandwidth[links] * (1 + 1e-12)
        return np.asarray(whole & fits & ~self.gpu[node], np.bool_)

    def apart(self, links: Integers, fed: Flags, drained: Flags) -> bool:
        """Return whether each of these links may go for a side that no other of them is on.

        ``fed`` and ``drained`` say for which sides it may go.
        """
        among = np.zeros(len(self.gone) + 1, np.bool_)
        among[links] = True
        own = [among[self.back[links]] & side for side in self._own(links)]
        feeding = np.bincount(self.end[links], minlength=len(self.fed))[self.start[links]]
        draining = np.bincount(self.start[links], minlength=len(self.fed))[self.end[links]]
        alone = fed & (feeding == own[0]), drained & (draining == own[1])
        return bool(np.all(alone[0] | alone[1]))

    def drop(self, links: Integers) -> None:
        self.gone[links] = True
        np.add.at(self.fed_missing, self.end[links], 1)
        np.add.at(self.drained_missing, self.start[links], 1)


def _sums(node: Integers, bandwidth: NDArray[np.float64], nodes: int) -> NDArray[np.float64]:
    """Return the bandwidth on a side of each node."""
    return np.bincount(node, bandwidth, minlength=nodes).astype(np.float64)
