"""Keeps the machine of a simulated timeline in its file: what each work costs there and shares.

With it the file can be simulated again exactly, contention included: as it was, and with healthy
links. Without it only durations are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.engine import DeadlockError, simulate
from sim.graph import Floats, Graph, Longs, Work, offsets
from sim.machine.hardware import Limits, Machine
from sim.timeline import Timeline
from traces.checked import NUMBER, TABLE, WHOLE, check, list_of
from traces.chrome import Event

MOST = 200_000
"""With more loads of works on links, or ops with factors of their own, no machine is written."""
CLOSE = 1e-9
"""The machine's run may differ from the file's times by this share of the whole time."""
_WHOLE = {"sms", "link_start", "link"}
_COLUMNS = [of.name for of in fields(Machine) if of.name != "gpu_sms" and of.default is MISSING]
_FIELDS = {
    **{name: list_of(WHOLE if name in _WHOLE else NUMBER) for name in _COLUMNS},
    "gpu_sms": WHOLE,
    "contention": NUMBER,
    "factor": list_of(NUMBER),
    "limits": list_of(NUMBER),
    "tensor": list_of(NUMBER),
    "traffic": list_of(NUMBER),
    "healthy": list_of(NUMBER),
}


class PricedMachine(NamedTuple):
    """A machine for a graph."""

    machine: Machine
    healthy: Floats  # (links,): B/s of each link of the machine if none is slower than it should be


def table(graph: Graph, of: PricedMachine) -> Event:
    """Return what the file says about the machine; nothing if it has very many links.

    An unbounded speed, that of a work that loads no link, is written as -1: JSON has no infinity.
    """
    machine = of.machine
    changed = machine.factor is not None and bool((machine.factor != 1.0).any())
    if len(machine.link) > MOST or (changed and len(graph) > MOST):
        return {}
    out: Event = {"gpu_sms": machine.gpu_sms, "contention": machine.contention}
    out["healthy"] = _finite(of.healthy)
    out |= {name: _finite(getattr(machine, name)) for name in _COLUMNS}
    out["factor"] = machine.factor.tolist() if changed and machine.factor is not None else []
    out["limits"] = [] if machine.limits is None else list(machine.limits)
    for name in ("tensor", "traffic"):
        out[name] = [] if machine.limits is None else getattr(machine, name).tolist()
    return {"machine": out}


def _finite(column: Any) -> list[float]:
    values: list[float] = np.where(np.isinf(column), -1, column).tolist()
    return values


def read(tables: Event, works: Sequence[Work], graph: Graph) -> PricedMachine | None:
    """Return the machine in a file's head, for the graph that was read; None if it has none.

    ``works`` are the file's, each a row of the machine. Raises InputError for what is no machine.
    """
    found = tables.get("machine")
    if found is None:
        return None
    check(tables, {"machine": TABLE}, "its head")
    if not _FIELDS.keys() <= found.keys():
        return None  # of another version
    check(found, _FIELDS, "its machine")
    _fits(found, len(works), len(graph))
    row = {work: k for k, work in reversed([*enumerate(works)])}
    machine = _machine(found, np.array([row[work] for work in graph.works], np.int64))
    return PricedMachine(machine, _endless(found["healthy"]))


def repeats(timeline: Timeline, of: PricedMachine) -> bool:
    """Return whether the machine gives the times of the timeline; it does not if one was edited."""
    try:
        ran = simulate(timeline.graph, of.machine)
    except DeadlockError:
        return False
    off = np.abs(ran.end - timeline.end).max(initial=0.0)
    return bool(off <= CLOSE * max(timeline.seconds, 1e-9))


def _fits(found: Event, works: int, ops: int) -> None:
    """Raise InputError where columns do not have the rows that they need."""
    begins, links = found["link_start"], len(found["link"])
    rows = {len(found[name]) for name in _COLUMNS} - {len(begins), links, len(found["capacity"])}
    right = rows <= {works} and len(begins) == works + 1 and begins == sorted(begins)
    right &= begins[0] == 0 and begins[-1] == links == len(found["coefficient"])
    right &= all(0 <= link < len(found["capacity"]) for link in found["link"])
    right &= len(found["healthy"]) == len(found["capacity"])
    powers = {len(found["tensor"]), len(found["traffic"])}
    right &= powers <= ({works} if found["limits"] else {0})
    right &= len(found["limits"]) in (0, len(Limits._fields))
    if not right or len(found["factor"]) not in (0, ops):
        raise InputError("its machine does not have a row for each work, link or op")


def _machine(found: Event, rows: Longs) -> Machine:
    """Return the machine with these rows of the file's, one for each work of the graph."""
    start = np.array(found["link_start"], np.int64)
    at = [np.arange(start[w], start[w + 1]) for w in rows.tolist()]
    links = np.concatenate([*at, np.empty(0, np.int64)])
    column: dict[str, Any] = {
        name: _endless(found[name])[rows]
        for name in _COLUMNS
        if name not in ("link_start", "link", "coefficient", "capacity")
    }
    column["sms"] = column["sms"].astype(np.int32)
    return Machine(
        **column,
        link_start=offsets(np.diff(start)[rows]),
        link=np.array(found["link"], np.int32)[links],
        coefficient=np.array(found["coefficient"], np.float64)[links],
        capacity=_endless(found["capacity"]),
        gpu_sms=found["gpu_sms"],
        contention=found["contention"],
        factor=_column(found["factor"]),
        limits=Limits(*found["limits"]) if found["limits"] else None,
        tensor=_column(found["tensor"], rows),
        traffic=_column(found["traffic"], rows),
    )


def _column(values: Sequence[float], rows: Longs | None = None) -> Floats | None:
    if not values:
        return None
    column = np.array(values, np.float64)
    return column if rows is None else column[rows]


def _endless(column: Sequence[float]) -> Floats:
    values = np.array(column, np.float64)
    return np.where(values < 0, np.inf, values)
