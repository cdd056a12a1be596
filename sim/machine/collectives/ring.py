"""Rings, as NCCL builds them.

Inside one node every rank passes chunks to the next. Where each of m nodes has k GPUs of the group,
NCCL runs k rings, each with 1/k of the buffer, that walk through all GPUs of a node and leave it by
different NICs. So each GPU passes (k-1)/k of its traffic on inside the node and sends 1/k through
its own NIC to the GPU in the same place of the next node.
"""

from __future__ import annotations

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives import tuning
from sim.machine.collectives.base import (
    Hops,
    RanksByNode,
    Traffic,
    by_kind,
    chain,
    cycle,
    place,
    put,
)


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
    placement, root = place(cluster, ranks), ranks[0]
    nodes = sorted(placement.nodes, key=lambda node: root not in node)
    nodes[0] = np.array(sorted(nodes[0].tolist(), key=lambda rank: rank != root))
    each = placement.each
    if len(nodes) == 1 or not each:
        hops = by_kind(cluster, chain(np.concatenate(nodes)), size)
    else:
        all_nodes = np.stack(nodes)
        hops = [
            Hops(chain(all_nodes[0]), size),
            Hops(cycle(all_nodes[1:]), size * (each - 1) / each),
            Hops(chain(all_nodes.T), size / each, True),
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
        return by_kind(cluster, cycle(np.concatenate(list(nodes))), load)
    inside, across = placement.rings
    if len(nodes) == 1:
        return [Hops(inside, load)]
    return [Hops(inside, load * (each - 1) / each), Hops(across, load / each, True)]
