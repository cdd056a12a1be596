"""Collectives on two levels: rings inside every node, and rings across nodes, one per place.

The levels run one after another, so the time of all but the longest level's bytes counts as
latency. Across the nodes only 1/k of the buffer travels per GPU, in rings of m ranks instead of
m·k: that takes few rounds, which is faster for small buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives import ring
from sim.machine.collectives.base import (
    Ranks,
    Traffic,
    UnsuitableError,
    added,
    alone,
    place,
    wire_seconds,
)
from sim.machine.collectives.placements import together

NAME = "hierarchical"
Collective = Callable[[Cluster, tuple[int, ...], float], Traffic]
Level = Callable[[Collective], Traffic]


def all_reduce(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Reduce-scatter inside each node, all-reduce across nodes, all-gather inside each node.

    Raises UnsuitableError as :func:`levels` does.
    """
    inside, across = _rings(cluster, ranks, size)
    parts = inside(ring.reduce_scatter), across(ring.all_reduce), inside(ring.all_gather)
    return sequence(cluster, NAME, *parts)


def all_gather(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """All-gather each place's part across nodes, then the whole inside each node.

    Raises UnsuitableError as :func:`levels` does.
    """
    inside, across = _rings(cluster, ranks, size)
    return sequence(cluster, NAME, across(ring.all_gather), inside(ring.all_gather))


def reduce_scatter(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Reduce-scatter inside each node, then each place's part across nodes.

    Raises UnsuitableError as :func:`levels` does.
    """
    inside, across = _rings(cluster, ranks, size)
    return sequence(cluster, NAME, inside(ring.reduce_scatter), across(ring.reduce_scatter))


def _rings(cluster: Cluster, ranks: tuple[int, ...], size: float) -> tuple[Level, Level]:
    """Return the levels: all nodes' rings of the whole, and the rings of each place's part."""
    nodes, each = levels(cluster, ranks)

    def inside(of: Collective) -> Traffic:
        return together(cluster, nodes, lambda node: of(cluster, node, size), NAME)

    def across(of: Collective) -> Traffic:
        return together(cluster, nodes.T, lambda rail: of(cluster, rail, size / each), NAME)

    return inside, across


def levels(cluster: Cluster, ranks: tuple[int, ...]) -> tuple[Ranks, int]:
    """Return the ranks by node, shape (nodes, each), and ``each``, if they fill two levels.

    Raises UnsuitableError otherwise.
    """
    nodes, each = place(cluster, ranks)
    if len(nodes) < 2 or each < 2:
        raise UnsuitableError(
            "a hierarchical collective needs at least two nodes with the same number of ranks, at "
            f"least two; the group has {[len(node) for node in nodes]} on its nodes"
        )
    return np.asarray(nodes), each


def sequence(cluster: Cluster, algorithm: str, *parts: Traffic) -> Traffic:
    """Join communications that run one after another; the time alone is the sum of theirs."""
    used = np.concatenate([part.links for part in parts])
    links, load = added(cluster, used, np.concatenate([part.bytes for part in parts]))
    whole = Traffic(links, load, 0.0, algorithm)
    seconds = fsum(alone(cluster, part) for part in parts)
    return whole._replace(latency=seconds - wire_seconds(cluster, whole))
