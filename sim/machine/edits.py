"""Edits of a priced graph: ops that take a factor as long, links that carry a factor as much.

What-if questions, perturbations and the removal of stragglers all say so with :class:`Edit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from sim.graph import Bools, Fixed, Floats, Graph, Ints, offsets, owners
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.links import Cable

Flags = Bools


class Edit(NamedTuple):
    """What takes ``factor`` times as long, or carries ``factor`` times as much, and where.

    ``what`` is "kernels" (their seconds, op by op), "lag" (gaps before ops), "links" (their
    B/s) or any other word: all that works take, communications for all of their members. ``where``
    is a flag per op, or per link; in an edit that is read from a text, its conditions. ``factor``
    is one number, or for kernels and links one per op or link.
    """

    what: str
    where: Any = ()
    factor: float | Floats = 1.0


def applied(graph: Graph, machine: Machine, *edits: Edit) -> tuple[Graph, Machine]:
    """Return the graph and machine after these edits, one after the other."""
    for what, where, factor in edits:
        if what == "kernels":
            own = np.ones(len(graph)) if machine.factor is None else machine.factor
            machine = replace(machine, factor=np.where(where, own * factor, own))
        elif what == "links":
            own = machine.capacity
            machine = with_capacity(machine, np.where(where, own * factor, own))
        elif what == "lag":
            graph = _later(graph, where, factor)
        else:
            graph, machine = _scaled(graph, machine, where, float(factor))
    return graph, machine


def with_bandwidth(cluster: Cluster, times: Iterable[tuple[Cable, float]]) -> Cluster:
    """Return the cluster on which each of these links has so many times its bandwidth."""
    network = cluster.network.copy()
    for link, factor in times:
        network.edges[link]["bandwidth"] *= factor
    return replace(cluster, network=network)


BY_LINK = {"link_start", "link", "coefficient", "capacity", "factor", "clocks"}
"""The columns of a machine that have no row per work."""
IN_PROPORTION = {"arithmetic", "memory", "fixed", "latency", "size", "tensor", "traffic"}
"""Those that are as much longer as a work is made; its power stays."""


def _scaled(graph: Graph, machine: Machine, ops: Flags, factor: float) -> tuple[Graph, Machine]:
    """Return the graph and machine on which these ops take ``factor`` times as long when alone.

    ``ops`` is a flag per op; a communication changes for all its members. A factor of 0 makes ops
    free: communication then takes neither SMs nor memory bandwidth.
    """
    member = owners(graph.part_start)
    parts = np.zeros(len(graph.part_work), bool)
    parts[graph.part[ops[member]]] = True
    ops = ops.copy()
    ops[member[parts[graph.part]]] = True
    old = np.unique(np.append(graph.work[ops], graph.part_work[parts]))
    new = np.arange(len(graph.works), dtype=graph.work.dtype)
    new[old] = len(graph.works) + np.arange(len(old))
    works = [graph.works[w] for w in old.tolist()]
    works = [w._replace(seconds=w.seconds * factor) if isinstance(w, Fixed) else w for w in works]
    changed = replace(
        graph,
        works=(*graph.works, *works),
        work=np.where(ops, new[graph.work], graph.work),
        part_work=np.where(parts, new[graph.part_work], graph.part_work),
    )
    return changed, _with_rows(machine, old, factor)


def _with_rows(machine: Machine, rows: Ints, factor: float) -> Machine:
    """Append a copy of these works that takes ``factor`` times as long, and return the machine."""
    columns: dict[str, Any] = {}
    for one in fields(Machine):
        value = getattr(machine, one.name)
        if isinstance(value, np.ndarray) and one.name not in BY_LINK:
            more = value[rows]
            if one.name in IN_PROPORTION:
                more = more * factor
            if one.name in ("sms", "hbm") and not factor:
                more = np.zeros_like(more)
            columns[one.name] = np.append(value, more)
    counts = np.diff(machine.link_start)
    at = np.concatenate(
        [np.arange(machine.link_start[w], machine.link_start[w + 1]) for w in rows.tolist()]
        or [np.empty(0, np.int64)]
    ).astype(np.int64)
    return replace(
        machine,
        **columns,
        link_start=offsets(np.append(counts, counts[rows])),
        link=np.append(machine.link, machine.link[at]),
        coefficient=np.append(machine.coefficient, machine.coefficient[at]),
    )


def _later(graph: Graph, ops: Flags, factor: float | Floats) -> Graph:
    later = np.repeat(ops, np.diff(graph.wait_start))
    return replace(
        graph,
        lag=np.where(ops, graph.lag * factor, graph.lag),
        wait_lag=np.where(later, graph.wait_lag * factor, graph.wait_lag),
    )


def with_capacity(machine: Machine, capacity: Floats) -> Machine:
    """Return the machine with these capacities of links, and with speeds that follow from them.

    ``capacity`` has the B/s of each link, one per row of ``machine.capacity``.
    """
    speed = _speeds(machine, capacity)
    ratio = np.divide(speed, machine.speed, out=np.ones_like(speed), where=np.isfinite(speed))
    return replace(
        machine, capacity=capacity, speed=speed, hbm=np.minimum(machine.hbm * ratio, 1.0)
    )


def _speeds(machine: Machine, capacity: Floats) -> Floats:
    """Return the B/s of each work when it is alone: what the slowest of its links allows."""
    speed = np.full(len(machine.speed), np.inf)
    work = owners(machine.link_start)
    loads = machine.coefficient > 0
    np.minimum.at(speed, work[loads], capacity[machine.link[loads]] / machine.coefficient[loads])
    return speed
