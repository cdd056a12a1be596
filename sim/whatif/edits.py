"""How edits are applied to a graph and its machine, column by column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.analysis.activity import COMPUTE, COPY, HOST, activities
from sim.graph import PHASES, Bools, Graph, Ints
from sim.machine.cluster import Cluster
from sim.machine.edits import Edit, applied
from sim.machine.hardware import Machine
from sim.timeline import dimension, kind
from sim.whatif.equal import levelled
from sim.whatif.grammar import LEVEL, Condition, parse
from sim.whatif.links import faster

Flags = Bools


def edited(
    graph: Graph, machine: Machine, text: str, cluster: Cluster | None = None
) -> tuple[Graph, Machine]:
    """Apply the edits of ``text`` in its order and return the new graph and machine.

    :func:`~.grammar.parse` says what ``text`` may hold. Edits of links need the ``cluster`` for
    which the machine was priced. Raises InputError for a text that is not an edit, and for an edit
    that concerns no op and no link.
    """
    for edit in parse(text):
        if edit == LEVEL:
            graph, machine = levelled(graph, machine)
        elif edit.what != "link":
            graph, machine = applied(graph, machine, _chosen(graph, edit))
        elif cluster is None:
            raise InputError(f"no link {edit.where!r}: the links of this run have no names")
        else:
            machine, cluster = faster(graph, machine, cluster, edit.where, float(edit.factor))
    return graph, machine


def _chosen(graph: Graph, edit: Edit) -> Edit:
    """Return the edit with a flag per op; raise InputError where it concerns none."""
    target, where, _ = edit
    chosen = _where(graph, where)
    if target != "lag":
        chosen &= _targets(graph, target)
        if not chosen.any():
            said = " and ".join(f"{key}={','.join(map(str, of))}" for key, of in where)
            raise InputError(f"the graph has no {target} op{f' where {said}' if said else ''}")
    return edit._replace(where=chosen)


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
