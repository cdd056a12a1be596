"""Groups that lie alike on a cluster, whose communications differ only in which links they use.

Groups lie alike where their ranks share the same switches of every tier in the same places, over
links of the same bandwidth and latency, and stand in the same order. Then what an algorithm finds
for one of them holds for all, with each link replaced by the one in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Floats, Ints, Longs
from sim.machine.classes import one_row
from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Ranks, Traffic, added
from sim.machine.collectives.routed import remembered
from sim.machine.hashes import Hashes, mix, mixed

Integers = Longs


class Placements(NamedTuple):
    """How groups lie on a cluster."""

    kind: Integers  # one number per group
    first: Integers  # the first group of each kind


class Rows(NamedTuple):
    """What groups put on links: one row per group and link, the groups in order."""

    group: Ints
    link: Ints
    source: Ints  # row of the loads that all kinds have in ``Traffic.some``

    def at(self, row: Integers) -> Rows:
        """Return some of the rows."""
        return Rows(self.group[row], self.link[row], self.source[row])


def placements(cluster: Cluster, groups: Ranks) -> Placements:
    """Return how each group lies; ``groups`` has the ranks of each, shape (groups, n)."""
    return remembered(cluster, "placements", [groups], lambda of: _placements(of, groups))


def _placements(cluster: Cluster, groups: Ranks) -> Placements:
    if len(groups) == 1 or cluster.paths is None or cluster.links_near is None:
        return Placements(np.arange(len(groups)), np.arange(len(groups)))
    looks = _looks(cluster, groups)
    if cluster.between is None and all(map(one_row, looks)):
        return Placements(np.zeros(len(groups), np.int64), np.zeros(1, np.int64))
    pattern: Hashes = np.add.reduce([mixed(of, k) for k, of in enumerate(looks)])
    if cluster.between is not None:  # routes between routers depend on where these are
        node = groups // cluster.gpus_per_node
        apart = np.flatnonzero((node != node[:, :1]).any(axis=1))
        pattern[apart] = mix(apart.astype(np.uint64))
    _, first, kind = np.unique(pattern, return_index=True, return_inverse=True)
    return Placements(kind, first)


def _looks(cluster: Cluster, groups: Ranks) -> list[Integers]:
    """Return what is equal for groups that lie alike, each of shape (groups, n).

    That is the order of their ranks, the links near each, and a hash of its switch on each tier,
    counted from the first rank's.
    """
    up = groups[:, 1:] > groups[:, :-1]
    order = np.argsort(groups, axis=1, kind="stable") if not up.all() else groups[:, :0]
    at = _switches(cluster)[groups]
    assert cluster.links_near is not None
    near = cluster.links_near[groups]
    return [order, near.view(np.int64), (at - at[:, :1]).view(np.int64)]


def _switches(cluster: Cluster) -> Hashes:
    """Return for each GPU a hash of its node and its switches that is linear in their numbers."""
    out: Hashes | None = cluster.found.get("switches")
    if out is None:
        assert cluster.paths is not None
        node = np.arange(cluster.gpus) // cluster.gpus_per_node
        tiers = [node, *(tier for nodes in cluster.paths.nodes for tier in nodes[:, 1:].T)]
        out = np.zeros(cluster.gpus, np.uint64)
        for tier, factor in zip(tiers, mix(np.arange(len(tiers), dtype=np.uint64)), strict=True):
            out += tier.astype(np.uint64) * (factor | np.uint64(1))
        cluster.found["switches"] = out
    return out


def spread(cluster: Cluster, groups: Ranks, found: Placements, firsts: Sequence[Traffic]) -> Rows:
    """Return the rows of all groups, given the first one of each kind."""
    group, link, source = [], [], []
    begin = 0
    for kind, of in enumerate(firsts):
        mine = np.flatnonzero(found.kind == kind).astype(np.int32)
        group.append(np.repeat(mine, len(of.links)))
        link.append(_moved(cluster, groups[mine], of.links).ravel())
        own = np.arange(len(of.links), dtype=np.int32) if of.classes is None else of.classes.of
        source.append(np.tile(own + np.int32(begin), len(mine)))
        begin += len(of.some[0])
    out = Rows(np.concatenate(group), np.concatenate(link), np.concatenate(source))
    if len(firsts) == 1:
        return out
    order = np.argsort(out.group, kind="stable")
    return out.at(order)


def sizes(firsts: Sequence[Traffic]) -> Floats:
    """Return the bytes of each source of rows."""
    return np.concatenate([of.some[1] for of in firsts])


def _moved(cluster: Cluster, groups: Ranks, links: Ints) -> Ints:
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
    rows = spread(cluster, groups, found, each)
    size = sizes(each)[rows.source]
    links, load = added(cluster, rows.link, size)
    return Traffic(links, load, max(one.latency for one in each), algorithm)
