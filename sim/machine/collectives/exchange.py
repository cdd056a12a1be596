"""One step of a ring, in which each rank sends something to the next one.

Transformer Engine's user buffers move the pieces of a tensor-parallel all-gather or reduce-scatter
in this way, by copy engines, beside the GEMM that uses or makes them; the buffer of such a step is
n / (n - 1) pieces. Their pipelined reduce-scatters read the pieces of all other ranks at once,
which puts the same bytes on the links. Ring attention passes on blocks of keys and values in the
same way, by sends and receives.
"""

from __future__ import annotations

import numpy as np

from sim.machine.cluster import Cluster
from sim.machine.collectives.base import Traffic, by_kind, cycle, place, put


def step(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send (n - 1) / n of the bytes from each rank to the next, with the constants of p2p."""
    return _shift(cluster, "exchange", ranks, size * (len(ranks) - 1) / len(ranks))


def piece(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send (n - 1) / n of the bytes from each rank: a piece that the SMs of all ranks reduce."""
    return _shift(cluster, "pipeline", ranks, size * (len(ranks) - 1) / len(ranks))


def hop(cluster: Cluster, ranks: tuple[int, ...], size: float) -> Traffic:
    """Send the whole buffer from each rank to the next, as ring attention does.

    It uses NCCL's sends and receives. All ranks hop together, because each waits for a block before
    it sends it on.
    """
    return _shift(cluster, "ring", ranks, size)


def _shift(cluster: Cluster, algorithm: str, ranks: tuple[int, ...], size: float) -> Traffic:
    hops = by_kind(cluster, cycle(np.array(ranks)), size)
    rounds = (0, 1) if len(hops[-1].pairs) else (1, 0)
    return put(cluster, "p2p", algorithm, hops, rounds, place(cluster, ranks).each or 1)
