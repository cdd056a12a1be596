"""What NCCL takes between nodes, by the model in its src/graph/tuning.cc (2.30).

NCCL estimates a time for each algorithm and protocol: latency, and bytes over a bandwidth. Its
choice is not always the fastest, so where a topology has [collectives.tuner] it is followed: rings
go from LL over LL128 to Simple with the size of the buffer, and all-reduces of whole nodes from
trees in LL over NVLS trees to rings. NCCL runs no collective in two levels of rings, so those are
left out there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from sim.machine.cluster import Cluster
from sim.machine.collectives import tree
from sim.machine.collectives.base import RanksByNode, Traffic, place

PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


class Ring(NamedTuple):
    """Seconds of a ring: at the start, per round inside a node, per round between nodes."""

    base: float
    inside: float
    across: float


RINGS = {  # of NVLink and the network; rounds inside wait for a NIC at least 1 us, Simple's 3
    "ll": Ring(6.6e-6, 1.0e-6, 2.7e-6),
    "ll128": Ring(14.0e-6, 1.9e-6, 4.0e-6),
    "simple": Ring(8.4e-6, 3.4e-6, 14.0e-6),
}
PLATEAU = 1.4  # on the latency of an all-reduce's ring in Simple
LL = 20.4e9  # B/s, the most of all ports together in LL
LL128 = 0.92  # share of a port that LL128 fills
NVLS_TREE = (25e-6, 20.9e-6)  # inside nodes, and a hop between them


def protocol(cluster: Cluster, collective: str, placement: RanksByNode, size: float) -> str | None:
    """Return the protocol of a ring between nodes; None where the fastest one counts."""
    tables = cluster.collectives.get(collective, {})
    known: set[str] = {name.partition("_")[0] for name in tables}
    if "tuner" not in cluster.collectives or "ll128" not in known or not placement.each:
        return None
    return min(known, key=lambda name: ring(cluster, collective, name, placement, size))


def never(cluster: Cluster) -> tuple[str, ...]:
    """Return the algorithms that NCCL does not have, where it is followed."""
    return ("hierarchical",) if "tuner" in cluster.collectives else ()


def considered(
    cluster: Cluster, ranks: tuple[int, ...], size: float, found: Sequence[Traffic]
) -> Sequence[Traffic]:
    """Return those communications, one per algorithm, among which NCCL takes the fastest."""
    kept = list(found)
    if "tuner" not in cluster.collectives or len(found) < 2:
        return kept
    if any(one.algorithm == "nvls_tree" for one in kept):
        placement = place(cluster, ranks)
        simple = ring(cluster, "all_reduce", "simple", placement, size)
        taken = "ring" if simple < nvls_tree(cluster, placement, size) else "nvls_tree"
        kept = [one for one in kept if one.algorithm == taken]
        if taken == "nvls_tree" and "tree" in cluster.collectives:
            kept.append(tree.all_reduce(cluster, ranks, size, "ll"))
    return kept


def ring(
    cluster: Cluster, collective: str, name: str, placement: RanksByNode, size: float
) -> float:
    """Return the seconds that NCCL expects of a ring between nodes in this protocol."""
    ports = _ports(cluster, placement)
    nodes, ranks = len(placement.nodes), len(placement.nodes) * placement.each
    passes, far = PASSES[collective], PASSES[collective] * (nodes - 1)
    base, inside, across = RINGS[name]
    seconds = base + (passes * (ranks - 1) - far) * inside + far * across
    seconds *= PLATEAU if (collective, name) == ("all_reduce", "simple") else 1.0
    most = float(cluster.collectives["tuner"]["ll128"])
    rate = {
        "ll": min(fsum(ports) / 2, LL),
        "ll128": fsum(min(LL128 * port, most) for port in ports),
        "simple": fsum(ports),
    }[name]
    return seconds + passes * (ranks - 1) / ranks * size / rate


def nvls_tree(cluster: Cluster, placement: RanksByNode, size: float) -> float:
    """Return the seconds that NCCL expects of an all-reduce by an NVLS tree."""
    ports = _ports(cluster, placement)
    nodes, ranks = len(placement.nodes), len(placement.nodes) * placement.each
    inside, across = NVLS_TREE
    cap = float(cluster.collectives["tuner"]["nvls_tree"])
    rate = fsum(min(port, cap) for port in ports) * (2 if nodes == 2 else 1)
    return inside + 2 * tree.depth(nodes) * across + 2 * (ranks - 1) / ranks * size / rate


def _ports(cluster: Cluster, placement: RanksByNode) -> list[float]:
    """Return the nominal bandwidth of each port that a node's ranks use or share, in B/s."""
    here, there = placement.nodes[:2]
    routes = [cluster.route(*pair) for pair in zip(here.tolist(), there.tolist(), strict=True)]
    used = {link for route in routes for link in route}
    nominal = {link: cluster.capacity[link] / cluster.efficiency[link] for link in used}
    users = Counter(link for route in routes for link in route)
    narrow = {min(route, key=lambda link: float(nominal[link]) / users[link]) for route in routes}
    return [float(nominal[link]) for link in sorted(narrow)]
