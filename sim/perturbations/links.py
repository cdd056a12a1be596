"""A cluster some of whose links are slower than they should be."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from schedules.input_error import InputError
from sim.analysis.links import tier
from sim.machine.cluster import Cluster
from sim.recipe.legality.perturbations import ranks
from sim.recipe.sections import PerturbationSection

Link = tuple[Hashable, Hashable]
SHORT = {
    frozenset(("gpu", "nvswitch")): "nvlink",
    frozenset(("gpu", "nic")): "pcie",
    frozenset(("nic", "leaf")): "ib",
    frozenset(("nic", "switch")): "ib",
}
"""What people call the links between two tiers; all beyond a NIC's own are the fabric."""


def slowed(cluster: Cluster, tables: Sequence[PerturbationSection]) -> Cluster:
    """The cluster with the bandwidth of the links that these tables slow, each way.

    Algorithms and latencies stay those of the healthy cluster: NCCL finds them before anything is
    slow. Raises InputError, in one sentence, for a link that there is not.
    """
    of_links = [table for table in tables if table.bandwidth is not None]
    if not of_links:
        return cluster
    network = cluster.network.copy()
    for table in of_links:
        for link in _found(cluster, table):
            network.edges[link]["bandwidth"] *= table.bandwidth
    return replace(cluster, network=network, healthy=cluster)


def _found(cluster: Cluster, table: PerturbationSection) -> list[Link]:
    wanted, own = _plain(table.link or ""), ranks(table)
    near = {node for rank in own for node in _near(cluster, rank)}
    out = [
        link
        for link in cluster.links
        if wanted in names(link) and (not own or near.issuperset(link))
    ]
    if not out:
        there = sorted({name for link in cluster.links for name in names(link)[:2]})
        where = f" of rank {', '.join(map(str, own))}" if own else ""
        raise InputError(
            f"perturbations: no link {table.link!r}{where}; {cluster.name} has {', '.join(there)}, "
            "or one by its ends as in the names of links"
        )
    return out


def names(link: Link) -> list[str]:
    """What a link may be called: short, by its tiers, by its ends; either way round.

    >>> names((3, "nvswitch 0"))
    ['nvlink', 'gpu - nvswitch', 'nvswitch - gpu', 'gpu 3 - nvswitch 0', 'nvswitch 0 - gpu 3']
    """
    tiers = [tier(end) for end in link]
    ends = [f"gpu {end}" if isinstance(end, int) else str(end) for end in link]
    pairs = [" - ".join(some[::way]) for some in (sorted(tiers), ends) for way in (1, -1)]
    return [SHORT.get(frozenset(tiers), "fabric"), *pairs]


def _plain(name: str) -> str:
    return " - ".join(part.strip().lower() for part in name.split("-"))


def _near(cluster: Cluster, rank: int) -> list[Hashable]:
    """A GPU, its NVSwitch, and what lies on its way to the core."""
    out: list[Hashable] = [rank, f"nvswitch {cluster.node(rank)}"]
    node: Hashable = rank
    while node in cluster.uplink:
        node = cluster.uplink[node]
        out.append(node)
    return out
