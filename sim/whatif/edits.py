"""How edits are applied to a graph and its machine, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.analysis.activity import COMPUTE, COPY, HOST, activities
from sim.graph import PHASES, Fixed, Graph, Ints, offsets, owners
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.timeline import dimension, kind
from sim.whatif.equal import levelled
from sim.whatif.grammar import Condition, Level, Link, Scale, parse
from sim.whatif.links import faster

Flags = NDArray[np.bool_]
BY_LINK = {"link_start", "link", "coefficient", "capacity", "factor", "clocks"}
"""The columns of a machine that have no row per work."""
IN_PROPORTION = {"arithmetic", "memory", "fixed", "latency", "size", "tensor", "traffic"}
"""Those that are as much longer as a work is made; its power stays."""


def edited(
    graph: Graph, machine: Machine, text: str, cluster: Cluster | None = None
) -> tuple[Graph, Machine]:
    """Apply the edits of ``text`` in its order and return the new graph and machine.

    :func:`~.grammar.parse` says what ``text`` may hold. Edits of links need the ``cluster`` for
    which the machine was priced. Raises InputError for a text that is not an edit, and for an edit
    that concerns no op and no link.
    """
    for edit in parse(text):
        if not isinstance(edit, Link):
            graph, machine = _apply(graph, machine, edit)
        elif cluster is None:
            raise InputError(f"no link {edit.name!r}: the links of this run have no names")
        else:
            machine, cluster = faster(graph, machine, cluster, edit.name, edit.factor)
    return graph, machine


def _apply(graph: Graph, machine: Machine, edit: Scale | Level) -> tuple[Graph, Machine]:
    match edit:
        case Level():
            return levelled(graph, machine)
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
            if one.name in (
                "arithmetic",
                "memory",
                "fixed",
                "latency",
                "size",
                "tensor",
                "traffic",
            ):
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
