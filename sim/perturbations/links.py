"""Perturbations of links: a cluster on which some links are slower than they should be."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from schedules.input_error import InputError
from sim.machine.cluster import Cluster
from sim.machine.edits import with_bandwidth
from sim.machine.links import kind, tier
from sim.machine.wires import Wires
from sim.recipe.legality.perturbations import ranks
from sim.recipe.sections import PerturbationSection

Link = tuple[Hashable, Hashable]


def slowed(cluster: Cluster, tables: Sequence[PerturbationSection]) -> Cluster:
    """Return the cluster on which the links of these tables are slower, in both directions.

    Algorithms and latencies stay those of the healthy cluster, because NCCL chooses them before
    anything is slow. Raises InputError for a link that the cluster does not have.
    """
    of_links = [table for table in tables if table.bandwidth is not None]
    if not of_links:
        return cluster
    times = [(link, of.bandwidth or 1.0) for of in of_links for link in _found(cluster, of)]
    return replace(with_bandwidth(cluster, times), healthy=cluster)


def _found(cluster: Cluster, table: PerturbationSection) -> list[Link]:
    wanted, own = _plain(table.link or ""), ranks(table)
    near = {node for rank in own for node in cluster.near(rank)}
    out = [
        link
        for link in cluster.links
        if wanted in names(cluster.network, link) and (not own or near.issuperset(link))
    ]
    if not out:
        there = sorted(
            {name for link in cluster.links for name in names(cluster.network, link)[:2]}
        )
        where = f" of rank {', '.join(map(str, own))}" if own else ""
        raise InputError(
            f"perturbations: no link {table.link!r}{where}; {cluster.name} has {', '.join(there)}, "
            "and a link may also be named by its two ends"
        )
    return out


def names(network: Wires, link: Link) -> list[str]:
    """Return the names of a link: its kind, and its tiers and its ends in both orders.

    >>> from sim.machine.cluster import load
    >>> names(load("dgx_a100", 8).network, (3, "nvswitch 0"))
    ['nvlink', 'gpu - nvswitch', 'nvswitch - gpu', 'gpu 3 - nvswitch 0', 'nvswitch 0 - gpu 3']
    """
    tiers = [tier(network, end) for end in link]
    ends = [f"gpu {end}" if isinstance(end, int) else str(end) for end in link]
    pairs = [" - ".join(some[::way]) for some in (sorted(tiers), ends) for way in (1, -1)]
    return [kind(network, link).kind, *pairs]


def _plain(name: str) -> str:
    return " - ".join(part.strip().lower() for part in name.split("-"))
