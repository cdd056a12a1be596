"""Collectives that copy engines run, which hold no SM: NCCL's zero-CTA policy, symmetric memory."""

from __future__ import annotations

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, UnsuitableError, every, place, put


def all_gather(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Copy each rank's n-th of the buffer to every other rank, with the constants of p2p.

    Raises UnsuitableError for ranks of several nodes, between which NCCL does not copy in this way.
    """
    nodes, each = place(cluster, ranks)
    if len(nodes) > 1:
        raise UnsuitableError(f"copy engines gather inside one node, not on ranks {ranks}")
    hops = [Hops(every(nodes[0]), size / each)]
    return put(cluster, "p2p", "copy", hops, (each - 1, 0), each)
