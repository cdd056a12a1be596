"""Collectives that copy engines run, which hold no SM: NCCL's zero-CTA policy, symmetric memory."""

from __future__ import annotations

from itertools import permutations

from sim.machine.cluster import Cluster
from sim.machine.collectives import ring
from sim.machine.collectives.base import Hops, Traffic, place, put


def all_gather(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Copy each rank's n-th of the buffer to every other rank, with the constants of p2p.

    Between nodes there are no such copies: it is a ring there.
    """
    nodes, each = place(cluster, ranks)
    if len(nodes) > 1:
        return ring.all_gather(cluster, ranks, size)
    hops = [Hops([*permutations(ranks, 2)], size / each)]
    return put(cluster, "p2p", "copy", hops, (each - 1, 0), each)
