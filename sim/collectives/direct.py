"""A message straight from one rank to another."""

from __future__ import annotations

from sim.cluster import Cluster
from sim.collectives.base import Hops, Traffic, put


def p2p(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """All bytes on each link of the route from the first rank to the second.

    Raises ValueError when these are not two ranks.
    """
    if len(ranks) != 2:
        raise ValueError(f"a p2p has a source and a target, not {len(ranks)} ranks")
    across = cluster.node(ranks[0]) != cluster.node(ranks[1])
    hops = [Hops([(ranks[0], ranks[1])], size, across)]
    return put(cluster, "p2p", "direct", hops, (0, 1) if across else (1, 0), 1)
