"""Edits of links: more or less bandwidth for those of a name, and latencies that follow from it."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from schedules.input_error import InputError
from sim.graph import Communication, Floats, Graph
from sim.machine.cluster import Cluster
from sim.machine.collectives import traffic
from sim.machine.edits import Edit, applied, with_bandwidth
from sim.machine.hardware import Machine
from sim.machine.links import kind as link_kind

Names = tuple[str, ...]


def link_names(cluster: Cluster) -> list[Names]:
    """Return the names by which an edit may call each link, one tuple per link of the cluster.

    A link inside a node has the name of its kind, such as "nvlink". All others are called "ib".
    Those on either side of a NIC are also called "nic" (and "pcie" on the side of its GPU), and
    those beyond it "fabric".
    """
    return [link_kind(cluster.network, link).names for link in cluster.links]


def faster(
    graph: Graph, machine: Machine, cluster: Cluster, name: str, factor: float
) -> tuple[Machine, Cluster]:
    """Give the links of a name ``factor`` times their bandwidth; return machine and cluster.

    Of a communication's latency, what a protocol wastes of the bandwidth changes with it, as on a
    machine with such links. Its algorithm stays. Raises InputError for a name that no link has.
    """
    links = link_names(cluster)
    known = sorted({"all"}.union(*links))
    if name not in known:
        near = get_close_matches(name.lower(), known, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise InputError(f"no link {name!r}; {hint} are {', '.join(known)}")
    factors = np.where([name == "all" or name in of for of in links], factor, 1.0)
    times = [*zip(cluster.links, factors.tolist(), strict=True)]
    healthy = cluster.healthy and with_bandwidth(cluster.healthy, times)
    changed = replace(with_bandwidth(cluster, times), healthy=healthy)
    latency = machine.latency * _latency_factors(graph, cluster, changed)
    slower = replace(machine, latency=latency)
    return applied(graph, slower, Edit("links", True, factors))[1], changed


def _latency_factors(graph: Graph, before: Cluster, after: Cluster) -> Floats:
    """Return by which factor the latency of each work changes, shape (works,)."""
    out = np.ones(len(graph.works))
    for w, work in enumerate(graph.works):
        if isinstance(work, Communication) and (old := traffic(before, work)).latency:
            chosen = old.algorithm if work.algorithm == "auto" else work.algorithm
            out[w] = traffic(after, work._replace(algorithm=chosen)).latency / old.latency
    return out
