"""Collectives on two levels: rings inside every node, and rings across nodes, one per place.

The levels run one after another, so the time of all but the longest level's bytes counts as
latency. Across the nodes only 1/k of the buffer travels per GPU, in rings of m ranks instead of
m·k: that takes few rounds, which is faster for small buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives import ring
from sim.machine.collectives.base import (
    EMPTY,
    RanksByNode,
    Traffic,
    UnsuitableError,
    alone,
    place,
    wire_seconds,
)

NAME = "hierarchical"


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Reduce-scatter inside each node, all-reduce across nodes, all-gather inside each node.

    Raises UnsuitableError as :func:`levels` does.
    """
    nodes, each = levels(cluster, ranks)
    inside, across = nodes, [list(rail) for rail in zip(*nodes, strict=True)]
    return sequence(
        cluster,
        NAME,
        together([ring.reduce_scatter(cluster, tuple(node), size) for node in inside]),
        together([ring.all_reduce(cluster, tuple(rail), size / each) for rail in across]),
        together([ring.all_gather(cluster, tuple(node), size) for node in inside]),
    )


def all_gather(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """All-gather each place's part across nodes, then the whole inside each node.

    Raises UnsuitableError as :func:`levels` does.
    """
    nodes, each = levels(cluster, ranks)
    return sequence(
        cluster,
        NAME,
        together(
            [ring.all_gather(cluster, rail, size / each) for rail in zip(*nodes, strict=True)]
        ),
        together([ring.all_gather(cluster, tuple(node), size) for node in nodes]),
    )


def reduce_scatter(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Reduce-scatter inside each node, then each place's part across nodes.

    Raises UnsuitableError as :func:`levels` does.
    """
    nodes, each = levels(cluster, ranks)
    return sequence(
        cluster,
        NAME,
        together([ring.reduce_scatter(cluster, tuple(node), size) for node in nodes]),
        together(
            [ring.reduce_scatter(cluster, rail, size / each) for rail in zip(*nodes, strict=True)]
        ),
    )


def levels(cluster: Cluster, ranks: tuple[int, ...]) -> RanksByNode:
    """Return the ranks grouped by node if they fill two levels.

    Raises UnsuitableError otherwise.
    """
    placement = place(cluster, ranks)
    if len(placement.nodes) < 2 or placement.each < 2:
        raise UnsuitableError(
            "a hierarchical collective needs at least two nodes with the same number of ranks, at "
            f"least two; the group has {[len(node) for node in placement.nodes]} on its nodes"
        )
    return placement


def together(parts: Sequence[Traffic], algorithm: str = NAME) -> Traffic:
    """Merge communications of different ranks that run at the same time into one."""
    links, row = np.unique(np.concatenate([part.links for part in parts]), return_inverse=True)
    load = np.zeros(len(links))
    np.add.at(load, row, np.concatenate([part.bytes for part in parts]))
    return Traffic(links.astype(np.int32), load, max(part.latency for part in parts), algorithm)


def sequence(cluster: Cluster, algorithm: str, *parts: Traffic) -> Traffic:
    """Join communications that run one after another; the time alone is the sum of theirs."""
    whole = together(parts, algorithm) if parts else EMPTY
    seconds = fsum(alone(cluster, part) for part in parts)
    return whole._replace(latency=seconds - wire_seconds(cluster, whole))
