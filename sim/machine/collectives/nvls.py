"""NVLink SHARP: the switches of a node add up buffers.

Each GPU sends and receives little more than its buffer once (NVIDIA, "NVLink SHARP", NCCL 2.17).
"""

from __future__ import annotations

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import (
    Hops,
    Ranks,
    Traffic,
    UnsuitableError,
    cycle,
    place,
    put,
)
from sim.machine.collectives.routed import NONE
from sim.machine.tiers import NVLINK


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send each GPU's buffer up once, and its n-th of the sum; receive the same: 2 rounds.

    Raises UnsuitableError when the topology gives no constants for it or the ranks are not one
    whole node.
    """
    nodes, each = place(cluster, ranks)
    whole = len(nodes) == 1 and each == cluster.gpus_per_node
    if "nvls" not in cluster.collectives or not whole or not one_switch(cluster, nodes[0]):
        raise UnsuitableError(
            f"nvls needs all {cluster.gpus_per_node} GPUs of one node on one NVSwitch, and "
            f"[collectives.nvls] in the topology; {cluster.name} with {len(ranks)} ranks on "
            f"{len(nodes)} nodes lacks one of them"
        )
    hops = [Hops(cycle(nodes[0]), size * (each + 1) / each)]
    return put(cluster, "nvls", "nvls", hops, (2, 0), each)


def one_switch(cluster: Cluster, ranks: Ranks) -> bool:
    """Return whether all ranks talk over one NVSwitch, and no tier of other links."""
    hops = np.concatenate([NONE, *(block.ravel() for block in cluster.routes(cycle(ranks)))])
    of = cluster.columns
    ends = {*of.start[hops].tolist(), *of.end[hops].tolist()}
    switches = [end for end in ends if not of.gpu[end]]
    return len(switches) == 1 and {*of.kind[hops].tolist()} <= {NVLINK, None}
