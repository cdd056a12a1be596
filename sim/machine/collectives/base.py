"""What all algorithms share: where the ranks are, how loads add up, and what a round costs.

The time of a collective alone follows the alpha-beta model with the constants of the topology's
[collectives] tables, one table per protocol; the fastest protocol counts, as in NCCL's tuner:

    base + rounds · (route latency + hop) + wire bytes / (nominal bandwidth · share)

``base`` is launch and set-up; ``hop`` is what a round inside a node adds to the latency of its
route, ``inner`` the same where the ring also leaves the node, ``fabric`` between nodes; ``share``
and ``fabric_share`` say what part of a link's nominal bandwidth the protocol reaches. Each may be a
table by the group's GPUs per node. A protocol without ``share`` runs between nodes alone, and one
that ends in "large" is the same where buffers are large. Links themselves are faster than one
collective can drive them, so what a protocol wastes is latency here: seconds in which the links are
free for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sim.graph import Bools, Floats, Ints, Longs
from sim.machine.classes import Classes
from sim.machine.cluster import Cluster
from sim.machine.collectives.routed import FEW, MANY, Routed, routed

Ranks = Longs
Pairs = Longs  # (pairs, 2): from one GPU to another


class _Traffic(NamedTuple):
    links: Ints  # indices of the links it uses, ascending
    bytes: Floats  # bytes on each of those links
    latency: float  # seconds that no bandwidth shortens
    algorithm: str


class Traffic(_Traffic):
    """What one communication puts on the network."""

    classes: Classes | None = None
    """Classes of its links that are equally fast and have the same bytes, if they are known."""

    @property
    def some(self) -> tuple[Ints, Floats]:
        """One link of each class, or each link, and its bytes."""
        if self.classes is None:
            return self.links, self.bytes
        return self.links[self.classes.first], self.bytes[self.classes.first]


class Hops(NamedTuple):
    """Transfers between pairs of GPUs, each of the same number of bytes."""

    pairs: Pairs
    load: float  # bytes of each transfer
    across: bool = False  # whether they are between nodes


class _RanksByNode(NamedTuple):
    nodes: Sequence[Ranks] | Ranks  # shape (nodes, each) if there is an ``each``
    each: int


class RanksByNode(_RanksByNode):
    """A group's ranks by node; ``each`` is how many a node has, 0 where nodes differ."""

    @cached_property
    def rings(self) -> tuple[Pairs, Pairs]:
        """The pairs of a ring inside each node, and of one across the nodes for each place."""
        grid = np.asarray(self.nodes)
        out = cycle(grid), cycle(grid.T)
        for pairs in out:
            pairs.flags.writeable = grid.size <= MANY  # else what they use is remembered by them
        return out


class UnsuitableError(ValueError):
    """The algorithm cannot serve ranks with this placement."""


EMPTY = Traffic(np.empty(0, np.int32), np.empty(0, np.float64), 0.0, "none")


def alone(cluster: Cluster, traffic: Traffic) -> float:
    """Return the seconds on an empty network: latency, then the slowest link's bytes."""
    return traffic.latency + wire_seconds(cluster, traffic)


def wire_seconds(cluster: Cluster, traffic: Traffic) -> float:
    """Return the seconds that the slowest link takes for its bytes on an empty network."""
    links, load = traffic.some
    return float((load / cluster.capacity[links]).max()) if len(links) else 0.0


def place(cluster: Cluster, ranks: Sequence[int]) -> RanksByNode:
    """Return the ranks grouped by node, both ascending."""
    found: RanksByNode | None = cluster.placed.get(tuple(ranks)) if len(ranks) > MANY else None
    if found is None:
        found = _place(cluster, np.sort(np.array(ranks, np.int64)))
        if len(ranks) > MANY:
            cluster.placed[tuple(ranks)] = found
    return found


def _place(cluster: Cluster, ranks: Ranks) -> RanksByNode:
    node = ranks // cluster.gpus_per_node
    begins = np.flatnonzero(np.diff(node, prepend=-1))
    sizes = np.diff(begins, append=len(ranks))
    each = int(sizes[0])
    if (sizes == each).all():
        return RanksByNode(ranks.reshape(-1, each), each)
    return RanksByNode(np.split(ranks, begins[1:]), 0)


def cycle(ranks: Ranks) -> Pairs:
    """Pair each rank with the next, the last with the first; return no pair for a single rank.

    Each row of ranks, if there are several, is a cycle of its own.
    """
    return along(ranks, np.roll(ranks, -1, axis=-1)) if ranks.shape[-1] > 1 else NO_PAIRS


def chain(ranks: Ranks) -> Pairs:
    """Pair each rank with the next, in each row if there are several."""
    return along(ranks[..., :-1], ranks[..., 1:])


def every(ranks: Ranks) -> Pairs:
    """Pair each rank with each other one."""
    pairs = along(*np.broadcast_arrays(ranks[:, None], ranks))
    out: Pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return out


def along(sources: Ranks, targets: Ranks) -> Pairs:
    """Pair each source with its target."""
    return np.stack([sources, targets], axis=-1).reshape(-1, 2)


def by_kind(cluster: Cluster, pairs: Pairs, load: float) -> list[Hops]:
    """Return transfers between these pairs, those inside nodes first."""
    node = pairs // cluster.gpus_per_node
    across = node[:, 0] != node[:, 1]
    return [Hops(pairs[~across], load), Hops(pairs[across], load, True)]


NO_PAIRS = np.empty((0, 2), np.int64)


def put(
    cluster: Cluster,
    constants: str,
    algorithm: str,
    hops: Sequence[Hops],
    rounds: tuple[int, int],
    each: int,
    protocol: str | None = None,
) -> Traffic:
    """Return all hops as one communication, given the rounds of its longest chain.

    ``rounds`` counts those inside nodes and those across. ``constants`` names the tables of fitted
    constants, and ``each`` is the group's GPUs per node, for which their shares are looked up. The
    fastest protocol counts, unless one is given.
    Raises ValueError when a rank is not in the cluster.
    """
    of = routed(cluster, [np.asarray(hop.pairs) for hop in hops])
    load, across = _loads(hops, of)
    delays = [[0.0], [0.0]]
    for hop, delay in zip(hops, of.delays, strict=True):
        delays[hop.across].append(delay)
    slowest, links = (max(delays[False]), max(delays[True])), of.some
    wire = load / cluster.capacity[links]
    protocols = [
        _latency(table, rounds, slowest) + _waste(table, wire, cluster.efficiency[links], across)
        for table in _protocols(cluster, constants, each, rounds[1] > 0, protocol)
    ]
    every = load if of.classes is None else load[of.classes.of]
    out = Traffic(of.links, every, min(protocols), algorithm)
    out.classes = of.classes
    return out


def _loads(hops: Sequence[Hops], of: Routed) -> tuple[Floats, Bools]:
    """Return the bytes on a link of each class, and whether it lies between nodes.

    Loads are counted, then multiplied, so that links with the same use have the very same float.
    """
    load, across = np.zeros(len(of.some)), np.zeros(len(of.some), bool)
    for hop, uses in zip(hops, of.uses, strict=True):
        at = np.flatnonzero(uses)
        load[at] += uses[at] * hop.load
        across[at] |= hop.across
    return load, across


def added(cluster: Cluster, links: Ints, size: Floats) -> tuple[Ints, Floats]:
    """Return each of some links once, ascending, and the sum of its bytes, added in order."""
    if len(links) < len(cluster.capacity) // FEW:
        distinct, row = np.unique(links, return_inverse=True)
        load = np.zeros(len(distinct))
        np.add.at(load, row, size)
        return distinct, load
    distinct, load = _distinct(cluster, links), np.zeros(len(cluster.capacity))
    np.add.at(load, links, size)
    return distinct, load[distinct]


def _distinct(cluster: Cluster, links: Ints) -> Ints:
    """Return each link once, ascending."""
    if len(links) < len(cluster.capacity) // FEW:
        return np.unique(links)
    there = np.zeros(len(cluster.capacity), np.bool_)
    there[links] = True
    return np.flatnonzero(there).astype(np.int32)


def _protocols(
    cluster: Cluster, constants: str, each: int, across: bool, protocol: str | None
) -> list[dict[str, float]]:
    """Return the constants of each protocol, or of one, for ``each`` GPUs per node."""
    which = (constants, each, across, protocol)
    known = cluster.protocols.get(which)
    if known is None:
        tables = [
            table
            for name, table in cluster.collectives.get(constants, {}).items()
            if (across or "share" in table) and protocol in (None, name.partition("_")[0])
        ]
        known = [{key: _at(value, each) for key, value in table.items()} for table in tables]
        known = cluster.protocols[which] = known or [{}]
    return known


def _at(value: Mapping[str, float] | float, each: int) -> float:
    """Return the value for ``each`` GPUs: linear between two sizes, else the nearest one."""
    if not isinstance(value, Mapping):
        return value
    sizes = sorted((int(size), of) for size, of in value.items())
    return float(np.interp(each, [size for size, _ in sizes], [of for _, of in sizes]))


def _latency(
    table: Mapping[str, float], rounds: tuple[int, int], delays: tuple[float, ...]
) -> float:
    inside, across = rounds
    hop = table.get("hop", 0.0)
    inner = table.get("inner", hop) if across else hop
    seconds = table.get("base", 0.0) + inside * (inner + delays[0])
    return seconds + across * (table.get("fabric", hop) + delays[1])


def _waste(table: Mapping[str, float], wire: Floats, efficiency: Floats, across: Bools) -> float:
    """Return the seconds that the protocol needs for the bytes beyond those that the links need."""
    inside, between = table.get("share", efficiency), table.get("fabric_share", efficiency)
    share = np.where(across, between, inside)
    return max(0.0, float((wire * efficiency / share).max() - wire.max()))
