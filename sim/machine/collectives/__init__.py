"""What each collective puts on the network: bytes on every link, and latency.

Sharing, time and events are handled elsewhere. Each module here is one algorithm, with a function
for every collective that it can do, from (cluster, ranks, bytes) to :class:`Traffic`. A new
algorithm is a new module and its line in ``ALGORITHMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from schedules.input_error import InputError
from sim.graph import Communication
from sim.machine.cluster import Cluster
from sim.machine.collectives import (
    all_to_all,
    copies,
    direct,
    exchange,
    hierarchical,
    nvls,
    nvls_tree,
    ring,
    tree,
    tuning,
)
from sim.machine.collectives.base import EMPTY, Traffic, UnsuitableError, alone, place
from sim.machine.collectives.routed import MANY

__all__ = ["ALGORITHMS", "Traffic", "alone", "traffic"]

Algorithm = Callable[[Cluster, tuple[int, ...], float], Traffic]

ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "hierarchical": hierarchical.all_reduce,
        "nvls": nvls.all_reduce,
        "nvls_tree": nvls_tree.all_reduce,
        "tree": tree.all_reduce,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "hierarchical": hierarchical.all_gather,
        "exchange": exchange.step,
        "copy": copies.all_gather,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "hierarchical": hierarchical.reduce_scatter,
        "exchange": exchange.step,
        "pipeline": exchange.piece,
    },
    "broadcast": {"ring": ring.broadcast},
    "all_to_all": {"pairwise": all_to_all.pairwise, "two_level": all_to_all.two_level},
    "ring_exchange": {"ring": exchange.hop},
    "p2p": {"direct": direct.p2p},
}
"""The algorithms of each collective; ``auto`` takes the first of equally fast ones."""
ASKED_FOR = ("exchange", "copy", "pipeline")
"""Algorithms that ``auto`` never takes: a step of a collective, not the whole, or what NCCL does
only when it is told to."""


def traffic(cluster: Cluster, communication: Communication) -> Traffic:
    """Return what a communication puts on the cluster's links.

    The algorithm ``auto`` stands for the one predicted fastest for that size and placement, among
    those that NCCL's tuner leaves (:mod:`sim.machine.collectives.tuning`).

    Raises InputError for an unknown algorithm, and ValueError for an unknown collective, a rank
    that is named twice or is not in the cluster, or an algorithm that does not suit the placement.
    """
    cluster, ranks = cluster.healthy or cluster, communication.ranks
    known = len(ranks) > MANY and ranks in cluster.placed
    if not known and (len(set(ranks)) != len(ranks) or not ranks):
        raise ValueError(f"a {communication.collective} needs distinct ranks, not {ranks}")
    candidates = _algorithms(cluster, communication)
    if len(ranks) == 1 or communication.bytes <= 0:
        return EMPTY
    if communication.algorithm == "copy" and len(place(cluster, ranks).nodes) > 1:
        communication = communication._replace(algorithm="auto")  # src/enqueue.cc of NCCL
        candidates = _algorithms(cluster, communication)
    if len(candidates) == 1:
        return candidates[0](cluster, ranks, communication.bytes)
    found = [*_suitable(candidates, cluster, ranks, communication.bytes)]
    found = [*tuning.considered(cluster, ranks, communication.bytes, found)]
    return min(found, key=lambda traffic: alone(cluster, traffic))


def _suitable(
    candidates: list[Algorithm], cluster: Cluster, ranks: tuple[int, ...], size: float
) -> Iterator[Traffic]:
    for algorithm in candidates:
        try:
            yield algorithm(cluster, ranks, size)
        except UnsuitableError:
            continue


def _algorithms(cluster: Cluster, communication: Communication) -> list[Algorithm]:
    collective, algorithm = communication.collective, communication.algorithm
    if collective not in ALGORITHMS:
        raise ValueError(f"no collective {collective!r}; there are {', '.join(ALGORITHMS)}")
    known = ALGORITHMS[collective]
    if algorithm == "auto":
        never = {*ASKED_FOR, *tuning.never(cluster)}
        return [call for name, call in known.items() if name not in never]
    if algorithm not in known:
        raise InputError(
            f"no algorithm {algorithm!r} for {collective}; there are auto, {', '.join(known)}"
        )
    return [known[algorithm]]
