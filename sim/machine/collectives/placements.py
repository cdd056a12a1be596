"""Groups that lie alike on a cluster, whose communications differ only in which links they use.

Groups lie alike where their ranks share the same switches of every tier in the same places, over
links of the same bandwidth and latency, and stand in the same order. Then what an algorithm finds
for one of them holds for all, with each link replaced by the one in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Ranks, Traffic, added, remembered
from sim.machine.hashes import mix

Integers = NDArray[np.int64]


class Placements(NamedTuple):
    """How groups lie on a cluster."""

    kind: Integers  # one number per group
    first: Integers  # the first group of each kind


class Rows(NamedTuple):
    """What groups put on links: one row per group and link, the groups in order."""

    group: Integers
    link: NDArray[np.int32]
    source: Integers  # row of the loads of the first groups of all kinds, one after another

    def at(self, row: Integers) -> Rows:
        """Return some of the rows."""
        return Rows(self.group[row], self.link[row], self.source[row])


def placements(cluster: Cluster, groups: Ranks) -> Placements:
    """Return how each group lies; ``groups`` has the ranks of each, shape (groups, n)."""
    return remembered(cluster, "placements", groups, _placements)


def _placements(cluster: Cluster, groups: Ranks) -> Placements:
    if len(groups) == 1 or cluster.paths is None or cluster.links_near is None:
        return Placements(np.arange(len(groups)), np.arange(len(groups)))
    node = np.arange(cluster.gpus) // cluster.gpus_per_node
    pattern = cluster.paths.pattern(groups, node, cluster.links_near)
    if cluster.between is not None:  # routes between routers depend on where these are
        at = node[groups]
        apart = np.flatnonzero((at != at[:, :1]).any(axis=1))
        pattern[apart] = mix(apart.astype(np.uint64))
    _, first, kind = np.unique(pattern, return_index=True, return_inverse=True)
    return Placements(kind, first)


def spread(
    cluster: Cluster, groups: Ranks, found: Placements, firsts: Sequence[NDArray[np.int32]]
) -> Rows:
    """Return the rows of all groups, given the links of the first group of each kind."""
    group, link, source = [], [], []
    begin = 0
    for kind, links in enumerate(firsts):
        mine = np.flatnonzero(found.kind == kind)
        group.append(np.repeat(mine, len(links)))
        link.append(_moved(cluster, groups[mine], links).ravel())
        source.append(np.tile(np.arange(begin, begin + len(links)), len(mine)))
        begin += len(links)
    out = Rows(np.concatenate(group), np.concatenate(link), np.concatenate(source))
    if len(firsts) == 1:
        return out
    order = np.argsort(out.group, kind="stable")
    return out.at(order)


def _moved(cluster: Cluster, groups: Ranks, links: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the links of each of some groups that lie alike, shape (groups, links)."""
    if len(groups) == 1 or cluster.paths is None:
        return links[None]
    slots = cluster.paths.slots
    own = slots[groups[0]].ravel()
    order = np.argsort(own, kind="stable")
    at = order[np.searchsorted(own[order], links)]
    rank, slot = np.divmod(at, slots.shape[1])
    return slots[groups[:, rank], slot]


def together(
    cluster: Cluster, groups: Ranks, call: Callable[[tuple[int, ...]], Traffic], algorithm: str
) -> Traffic:
    """Return the communications of several groups, shape (groups, n), at the same time as one."""
    found = placements(cluster, groups)
    each = [call(tuple(groups[first].tolist())) for first in found.first]
    rows = spread(cluster, groups, found, [one.links for one in each])
    size = np.concatenate([one.bytes for one in each])[rows.source]
    links, load = added(cluster, rows.link, size)
    return Traffic(links, load, max(one.latency for one in each), algorithm)
