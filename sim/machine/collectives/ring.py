"""Rings, as NCCL builds them.

Inside one node every rank passes chunks to the next. Where each of m nodes has k GPUs of the group,
NCCL runs k rings, each with 1/k of the buffer, that walk through all GPUs of a node and leave it by
different NICs. So each GPU passes (k-1)/k of its traffic on inside the node and sends 1/k through
its own NIC to the GPU in the same place of the next node.
"""

from __future__ import annotations

from itertools import pairwise

from sim.machine.cluster import Cluster
from sim.machine.collectives import tuning
from sim.machine.collectives.base import Hops, Pairs, RanksByNode, Traffic, cycle, place, put


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Run a reduce-scatter and an all-gather: 2 (n - 1) rounds of a chunk of ``size`` / n bytes."""
    return _ring(cluster, "all_reduce", ranks, size, passes=2)


def all_gather(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Run n - 1 rounds, in each of which every rank passes on a chunk of the result."""
    return _ring(cluster, "all_gather", ranks, size, passes=1)


def reduce_scatter(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Run n - 1 rounds, in each of which every rank passes on a chunk of partial sums."""
    return _ring(cluster, "reduce_scatter", ranks, size, passes=1)


def broadcast(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Pass the first rank's buffer along a chain in small pieces: n - 1 hops.

    It is priced like the rounds of an all-gather, as no public measurement tells them apart.
    """
    placement = place(cluster, ranks)
    nodes = sorted(placement.nodes, key=lambda node: ranks[0] not in node)
    nodes[0].sort(key=lambda rank: rank != ranks[0])
    each = placement.each
    if len(nodes) == 1 or not each:
        hops = _by_kind(cluster, list(pairwise([r for node in nodes for r in node])), size)
    else:
        hops = [
            Hops(list(pairwise(nodes[0])), size),
            Hops([p for node in nodes[1:] for p in cycle(node)], size * (each - 1) / each),
            Hops(
                [p for rail in zip(*nodes, strict=True) for p in pairwise(rail)], size / each, True
            ),
        ]
    across = len(nodes) - 1
    rounds = (len(ranks) - 1 - across, across)
    return put(cluster, "all_gather", "ring", hops, rounds, each or 1)


def _ring(
    cluster: Cluster, collective: str, ranks: tuple[int, ...], size: float, passes: int
) -> Traffic:
    n, placement = len(ranks), place(cluster, ranks)
    hops = _hops(cluster, placement, passes * (n - 1) * (size / n))
    nodes = len(placement.nodes)
    across = min(n - 1, nodes) if nodes > 1 else 0  # a chunk's longest path leaves out one hop
    rounds = (passes * (n - 1 - across), passes * across)
    protocol = tuning.protocol(cluster, collective, placement, size) if across else None
    return put(cluster, collective, "ring", hops, rounds, placement.each or 1, protocol)


def _hops(cluster: Cluster, placement: RanksByNode, load: float) -> list[Hops]:
    """Return all transfers of rings on which each rank sends ``load`` bytes in total."""
    nodes, each = placement
    if not each:  # uneven: one ring, node after node
        return _by_kind(cluster, cycle([rank for node in nodes for rank in node]), load)
    if len(nodes) == 1:
        return [Hops(cycle(nodes[0]), load)]
    inside = [pair for node in nodes for pair in cycle(node)]
    across = [pair for rail in zip(*nodes, strict=True) for pair in cycle(rail)]
    return [Hops(inside, load * (each - 1) / each), Hops(across, load / each, True)]


def _by_kind(cluster: Cluster, pairs: Pairs, load: float) -> list[Hops]:
    inside = [(a, b) for a, b in pairs if cluster.node(a) == cluster.node(b)]
    across = [(a, b) for a, b in pairs if cluster.node(a) != cluster.node(b)]
    return [Hops(inside, load), Hops(across, load, True)]
