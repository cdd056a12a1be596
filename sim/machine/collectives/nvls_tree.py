"""NVLink SHARP inside nodes and a double binary tree between them (NCCL 2.18, NVLSTree).

The switches of a node add up its GPUs' buffers, and each GPU holds its part of the sum. Those parts
go up and down the trees of :mod:`sim.machine.collectives.tree` over the GPU's own port; switches
hand the whole sum to all. Between two nodes a port carries half of what it carries in a ring, so
two nodes reach more than their ports seem to allow.
"""

from __future__ import annotations

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, UnsuitableError, place, put
from sim.machine.collectives.nvls import one_switch
from sim.machine.collectives.tree import busiest, depth


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Take two rounds of NVLink SHARP, and 2 log2 of the nodes across; see nvls and tree.

    Raises UnsuitableError when the topology gives no constants for it, or the ranks are not two or
    more whole nodes with an NVSwitch.
    """
    placement = place(cluster, ranks)
    nodes, each = placement
    whole = len(nodes) > 1 and each == cluster.gpus_per_node
    if "nvls_tree" not in cluster.collectives or not whole or not one_switch(cluster, nodes[0]):
        raise UnsuitableError(
            f"nvls_tree needs all {cluster.gpus_per_node} GPUs of two nodes or more, each with one "
            f"NVSwitch, and [collectives.nvls_tree] in the topology; {cluster.name} with "
            f"{[len(node) for node in nodes]} ranks lacks one of them"
        )
    inside, across = placement.rings
    hops = [
        Hops(inside, size * (each + 1) / each),
        Hops(across, busiest(len(nodes)) * size / 2 / each, True),
    ]
    return put(cluster, "nvls_tree", "nvls_tree", hops, (2, 2 * depth(len(nodes))), each)
