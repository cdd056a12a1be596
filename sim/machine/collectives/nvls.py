"""NVLink SHARP: the switches of a node add up buffers.

Each GPU sends and receives little more than its buffer once (NVIDIA, "NVLink SHARP", NCCL 2.17).
"""

from __future__ import annotations

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, UnsuitableError, cycle, place, put


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send each GPU's buffer up once, and its n-th of the sum; receive the same: 2 rounds.

    Raises UnsuitableError when the topology gives no constants for it or the ranks are not one
    whole node.
    """
    nodes, each = place(cluster, ranks)
    if "nvls" not in cluster.collectives or len(nodes) > 1 or each < cluster.gpus_per_node:
        raise UnsuitableError(
            f"nvls needs all {cluster.gpus_per_node} GPUs of one node, and [collectives.nvls] in "
            f"the topology; {cluster.name} with ranks {ranks} lacks one of them"
        )
    hops = [Hops(cycle(nodes[0]), size * (each + 1) / each)]
    return put(cluster, "nvls", "nvls", hops, (2, 0), each)
