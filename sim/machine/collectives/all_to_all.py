"""Every rank's buffer cut into n pieces, one for each rank: n - 1 of them are sent.

NCCL has no kernel of its own for it: it runs as grouped sends and receives, all of a rank's at the
same time. So its constants (fitted to measured ones; a topology without them has those of a p2p)
count once, however many peers there are; the links see the bytes of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, place, put
from sim.machine.collectives.hierarchical import levels, sequence, together


def pairwise(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """A piece of size / n from each rank straight to each other one, all at once."""
    pairs = list(permutations(ranks, 2))
    inside = [(a, b) for a, b in pairs if cluster.node(a) == cluster.node(b)]
    across = [(a, b) for a, b in pairs if cluster.node(a) != cluster.node(b)]
    piece = size / len(ranks)
    hops = [Hops(some, piece, far) for some, far in ((inside, False), (across, True)) if some]
    rounds = (0, 1) if across else (1, 0)
    constants = "all_to_all" if "all_to_all" in cluster.collectives else "p2p"
    return put(cluster, constants, "pairwise", hops, rounds, place(cluster, ranks).each or 1)


def two_level(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Inside each node to the GPU in the place of the target, then across nodes to the target.

    With k GPUs of m nodes each GPU first hands every mate the k-th of its buffer that goes to that
    place of any node, then sends an m-th of what it has gathered to its like in every other node:
    m - 1 large messages between GPUs of one rail for (m - 1) k small ones to all. They arrive where
    they belong; nothing is left to scatter. It is the hierarchical all-to-all of DeepSpeed-MoE
    (arXiv:2201.05596).
    """
    nodes, _ = levels(cluster, ranks)
    rails = list(zip(*nodes, strict=True))
    return sequence(cluster, "two_level", _all(cluster, nodes, size), _all(cluster, rails, size))


def _all(cluster: Cluster, groups: Sequence[Sequence[int]], size: float) -> Traffic:
    parts = [pairwise(cluster, tuple(group), size) for group in groups]
    return together(parts, "two_level")
