"""One step of a ring, by copy engines: each rank sends a piece to the next one.

Transformer Engine's user buffers move the pieces of a tensor-parallel all-gather or reduce-scatter
so, beside the GEMM that uses or makes them. The buffer of such a step is n / (n - 1) pieces.
"""

from __future__ import annotations

from sim.cluster import Cluster
from sim.collectives.base import Hops, Traffic, cycle, place, put


def step(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """(n - 1) / n of the bytes from each rank to the next, with the constants of p2p."""
    where = place(cluster, ranks)
    piece = size * (len(ranks) - 1) / len(ranks)
    pairs = cycle(ranks)
    inside = [pair for pair in pairs if cluster.node(pair[0]) == cluster.node(pair[1])]
    across = [pair for pair in pairs if pair not in inside]
    hops = [Hops(some, piece, far) for some, far in ((inside, False), (across, True)) if some]
    return put(cluster, "p2p", "exchange", hops, (0, 1) if across else (1, 0), where.each or 1)
