"""How edits are applied to a graph and its machine, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.analysis.activity import COMPUTE, COPY, HOST, activities
from sim.graph import PHASES, Fixed, Graph, Ints, offsets, owners
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.links import kind as link_kind
from sim.timeline import dimension, kind
from sim.whatif.equal import levelled
from sim.whatif.grammar import Condition, Edit, Level, Link, Scale, parse

Flags = NDArray[np.bool_]
Names = tuple[str, ...]
BY_LINK = {"link_start", "link", "coefficient", "capacity"}
"""The columns of a machine that have no row per work."""


def edited(
    graph: Graph, machine: Machine, text: str, links: Sequence[Names] = ()
) -> tuple[Graph, Machine]:
    """Apply the edits of ``text`` in its order and return the new graph and machine.

    :func:`~.grammar.parse` says what ``text`` may hold. ``links`` has the names of each link of the
    machine, as :func:`link_names` returns them. Raises InputError for a text that is not an edit,
    and for an edit that concerns no op and no link.
    """
    for edit in parse(text):
        graph, machine = _apply(graph, machine, edit, links)
    return graph, machine


def link_names(cluster: Cluster) -> list[Names]:
    """Return the names by which an edit may call each link, one tuple per link of the cluster.

    A link inside a node has the name of its kind, such as "nvlink". All others are called "ib".
    Those on either side of a NIC are also called "nic" (and "pcie" on the side of its GPU), and
    those beyond it "fabric".
    """
    return [link_kind(cluster.network, link).names for link in cluster.links]


def _apply(
    graph: Graph, machine: Machine, edit: Edit, links: Sequence[Names]
) -> tuple[Graph, Machine]:
    match edit:
        case Level():
            return levelled(graph, machine)
        case Link(name=name, factor=factor):
            return graph, _faster(machine, name, factor, links)
        case Scale(target="lag", factor=factor, where=where):
            return _lags(graph, _where(graph, where), factor), machine
        case Scale(target=target, factor=factor, where=where):
            chosen = _targets(graph, target) & _where(graph, where)
            if not chosen.any():
                said = " and ".join(f"{key}={','.join(map(str, of))}" for key, of in where)
                raise InputError(f"the graph has no {target} op{f' where {said}' if said else ''}")
            return scaled(graph, machine, chosen, factor)
    raise TypeError(edit)


def _targets(graph: Graph, target: str) -> Flags:
    kinds = activities(graph)
    if target == "communication":
        of_work = np.array([bool(dimension(work)) for work in graph.works], bool)
        return np.asarray(of_work[graph.work])
    name = {"launch": HOST, "copy": COPY, "compute": COMPUTE}[target]
    code = kinds.names.index(name) if name in kinds.names else -1
    return np.asarray(kinds.code == code)


def _where(graph: Graph, where: Sequence[Condition]) -> Flags:
    """Return a flag per op: all conditions hold for it."""
    out = np.ones(len(graph), bool)
    tables: dict[str, tuple[Ints | NDArray[np.int8], Sequence[str]]] = {
        "kind": (graph.work, [kind(work) for work in graph.works]),
        "dimension": (graph.work, [dimension(work) for work in graph.works]),
        "name": (graph.name, graph.names),
        "stream": (graph.stream, graph.streams),
        "phase": (graph.phase, PHASES),
    }
    for key, values in where:
        if key in tables:
            row, table = tables[key]
            out &= np.array([one in values for one in table], bool)[row]
        else:
            out &= np.isin(getattr(graph, key), np.array(values, np.int64))
    return out


def scaled(graph: Graph, machine: Machine, ops: Flags, factor: float) -> tuple[Graph, Machine]:
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


def _with_rows(machine: Machine, rows: NDArray[np.int32], factor: float) -> Machine:
    """Append a copy of these works that takes ``factor`` times as long, and return the machine."""
    columns: dict[str, Any] = {}
    for one in fields(Machine):
        value = getattr(machine, one.name)
        if isinstance(value, np.ndarray) and one.name not in BY_LINK:
            more = value[rows]
            if one.name in ("arithmetic", "memory", "fixed", "latency", "size"):
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


def _lags(graph: Graph, ops: Flags, factor: float) -> Graph:
    later = np.repeat(ops, np.diff(graph.wait_start))
    return replace(
        graph,
        lag=np.where(ops, graph.lag * factor, graph.lag),
        wait_lag=np.where(later, graph.wait_lag * factor, graph.wait_lag),
    )


def _faster(machine: Machine, name: str, factor: float, links: Sequence[Names]) -> Machine:
    """Give the links of a name ``factor`` times their bandwidth and return the machine.

    Latencies (which include what protocols waste) and the choice of algorithms stay as they are.
    """
    known = sorted({"all"}.union(*links))
    if not links:
        raise InputError(f"no link {name!r}: the links of this run have no names")
    if name not in known:
        near = get_close_matches(name.lower(), known, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise InputError(f"no link {name!r}; {hint} are {', '.join(known)}")
    chosen = np.array([name == "all" or name in of for of in links], bool)
    return with_capacity(machine, np.where(chosen, machine.capacity * factor, machine.capacity))


def with_capacity(machine: Machine, capacity: NDArray[np.float64]) -> Machine:
    """Return the machine with these capacities of links, and with speeds that follow from them.

    ``capacity`` has the B/s of each link, one per row of ``machine.capacity``.
    """
    speed = _speeds(machine, capacity)
    ratio = np.divide(speed, machine.speed, out=np.ones_like(speed), where=np.isfinite(speed))
    return replace(
        machine, capacity=capacity, speed=speed, hbm=np.minimum(machine.hbm * ratio, 1.0)
    )


def _speeds(machine: Machine, capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the B/s of each work when it is alone: what the slowest of its links allows."""
    speed = np.full(len(machine.speed), np.inf)
    work = owners(machine.link_start)
    loads = machine.coefficient > 0
    np.minimum.at(speed, work[loads], capacity[machine.link[loads]] / machine.coefficient[loads])
    return speed
