"""All-to-all: every rank cuts its buffer into n pieces, one per rank, and sends n - 1 of them.

NCCL has no kernel of its own for it: it runs as grouped sends and receives, all of a rank's at the
same time. So its constants count once, however many peers there are, while the links see the bytes
of all of them. The constants are fitted to measured all-to-alls; a topology without them uses those
of a p2p.
"""

from __future__ import annotations

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Ranks, Traffic, by_kind, every, place, put
from sim.machine.collectives.hierarchical import levels, sequence
from sim.machine.collectives.placements import together


def pairwise(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send a piece of ``size`` / n bytes straight from each rank to each other one, all at once."""
    hops = by_kind(cluster, every(np.array(ranks)), size / len(ranks))
    rounds = (0, 1) if len(hops[-1].pairs) else (1, 0)
    constants = "all_to_all" if "all_to_all" in cluster.collectives else "p2p"
    return put(cluster, constants, "pairwise", hops, rounds, place(cluster, ranks).each or 1)


def two_level(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send inside each node to the GPU in the target's place, then across nodes to the target.

    With k GPUs in each of m nodes every GPU first hands each mate the k-th of its buffer that goes
    to the mate's place in any node, then sends an m-th of what it has gathered to the GPU in the
    same place of every other node. So m - 1 large messages between GPUs of one rail replace (m - 1)
    k small ones to all. They arrive where they belong, and nothing is left to scatter. It is the
    hierarchical all-to-all of DeepSpeed-MoE (arXiv:2201.05596).

    Raises UnsuitableError as :func:`levels` does.
    """
    nodes, _ = levels(cluster, ranks)
    return sequence(cluster, "two_level", _all(cluster, nodes, size), _all(cluster, nodes.T, size))


def _all(cluster: Cluster, groups: Ranks, size: float) -> Traffic:
    return together(cluster, groups, lambda group: pairwise(cluster, group, size), "two_level")
