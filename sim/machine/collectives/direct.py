"""Messages sent straight from one rank to another."""

from __future__ import annotations

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Hops, Traffic, put


def p2p(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Put all bytes on each link of the route from the first rank to the second.

    Raises ValueError when there are not exactly two ranks.
    """
    if len(ranks) != 2:
        raise ValueError(f"a p2p has a source and a target, not {len(ranks)} ranks")
    route = tuple(sorted(cluster.route(*ranks)))
    across = cluster.node(ranks[0]) != cluster.node(ranks[1])
    on = [*route]
    capacity, efficiency = cluster.capacity[on].tolist(), cluster.efficiency[on].tolist()
    alike = (size, across, cluster.latency(route), *capacity, *efficiency)
    latency = cluster.memo.get(alike)
    if latency is None:
        hops = [Hops(np.array([ranks]), size, across)]
        whole = put(cluster, "p2p", "direct", hops, (0, 1) if across else (1, 0), 1)
        latency = cluster.memo[alike] = whole.latency
    return Traffic(np.array(route, np.int32), np.full(len(route), size), latency, "direct")
