"""NCCL's double binary trees: few hops between nodes, so small all-reduces over many are fast.

Two binary trees over the nodes reduce and broadcast half of the buffer each. A node that has
children in one tree is a leaf of the other, with few exceptions, so that both directions of every
port are used (Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; NCCL 2.4). Inside a node a chain joins the GPUs. Where each node has k of them
there are k such pairs of trees, each with 1/k of the buffer and its own GPU of each node as the
chain's head.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, UnsuitableError, place, put

Integers = NDArray[np.int64]


def all_reduce(
    cluster: Cluster, ranks: tuple[int, ...], size: float, protocol: str | None = None
) -> Traffic:
    """Go up the trees and down again: 2 (k - 1) hops inside nodes, 2 log2 of the nodes across.

    Latency is that of NCCL's src/graph/tuning.cc. Every port carries what the busiest node sends, 2
    / k of the buffer in all but tiny groups. Roots and a ragged edge send less in reality; with
    that, nodes would differ, and replicas of a job could not stand for each other.

    Raises UnsuitableError when the topology gives no constants for it, the ranks are in one node,
    or nodes have different numbers of them.
    """
    placement = place(cluster, ranks)
    nodes, each = placement
    if (cluster.collectives and "tree" not in cluster.collectives) or len(nodes) < 2 or not each:
        raise UnsuitableError(
            "a tree needs at least two nodes with the same number of ranks, and "
            f"[collectives.tree] in the topology; {cluster.name} with "
            f"{[len(node) for node in nodes]} ranks lacks one"
        )
    inside, across = placement.rings
    hops = [
        Hops(inside, 2 * size * (each - 1) / each),
        Hops(across, busiest(len(nodes)) * size / 2 / each, True),
    ]
    rounds = (2 * (each - 1), 2 * depth(len(nodes)))
    return put(cluster, "tree", "tree", hops, rounds, each, protocol)


def parents(nodes: int) -> Integers:
    """Return each node's parent in the first tree, -1 for the root (NCCL's src/graph/trees.cc).

    A node's lowest set bit is its height. Its parent has the next bit set instead or, where there
    is no such node, neither bit.

    >>> parents(6).tolist()
    [-1, 2, 4, 2, 0, 4]
    """
    node = np.arange(nodes)
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    out = np.where(above < nodes, above, node ^ bit)
    out[0] = -1
    return out


def mirrored(nodes: int) -> Integers:
    """Return each node's parent in the second tree.

    It is the first tree read backwards, or shifted by one node for an odd number of nodes.

    >>> mirrored(6).tolist(), mirrored(3).tolist()
    ([1, 5, 3, 1, 3, -1], [1, -1, 0])
    """
    node = np.arange(nodes)
    role = (node - 1) % nodes if nodes % 2 else nodes - 1 - node
    above = parents(nodes)[role]
    return np.where(above < 0, -1, np.argsort(role)[above])


def depth(nodes: int) -> int:
    """Return the hops from the farthest leaf to the root: log2 of the nodes, rounded up."""
    return (nodes - 1).bit_length()


@cache
def busiest(nodes: int) -> int:
    """Return how many halves of the buffer the node with most neighbours sends, over both trees.

    A node sends one to its parent on the way up, and one to each child on the way down.

    >>> busiest(2), busiest(3), busiest(100)
    (2, 3, 4)
    """
    above = np.concatenate([parents(nodes), mirrored(nodes)])
    below = np.tile(np.arange(nodes), 2)
    return int(np.bincount(np.concatenate([above[above >= 0], below[above >= 0]])).max())
