"""Stamps: copies of templates for every microbatch and rank, and the graph that they make up.

No function here loops over the ops of a graph: only over stamps and the axes and slots of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.builder.slots import Slot
from sim.builder.template import Tables, Template
from sim.graph import Graph, Ints, Longs, offsets, zeros

LOCAL = ("name", "work", "stream", "phase", "layer", "wait_count", "part_count", "memory_count")
"""Columns of a template that each of its copies has."""
OF_COPY: Mapping[str, type[np.signedinteger[Any]]] = {
    "rank": np.int32,
    "stage": np.int16,
    "microbatch": np.int32,
    "step": np.int32,
}
"""Columns in which all ops of a copy are alike."""


@dataclass(frozen=True, eq=False)
class Stamp:
    """Copies of one template on one rank; arrays have one row per copy unless said otherwise."""

    template: Template
    rank: int
    stage: int
    base: Longs  # index of the copy's first op
    microbatch: Ints
    parts: Sequence[Longs]  # per axis of the template: the first part of each copy
    wait_slots: Mapping[Slot, Longs]  # per slot of the template: an op per copy
    part_slots: Sequence[Longs] = ()  # per slot for a part: a part per copy
    step: Longs | int = 0  # training step, or update of the weights, of the copy


def assemble(
    stamps: Sequence[Stamp],
    tables: Tables,
    part_work: Ints,
    persistent: dict[int, dict[str, float]],
    stands_for: dict[int, int],
) -> Graph:
    """Return all stamps as one graph; their copies must tile 0 .. n - 1.

    ``part_work`` has the works of messages; those of parts on an axis are filled in here.
    """
    columns = _columns(stamps)
    n = len(columns["work"])
    wait_start, part_start, memory_start = (
        offsets(columns.pop(f"{of}_count")) for of in ("wait", "part", "memory")
    )
    wait_on, part = np.empty(wait_start[-1], np.int32), np.empty(part_start[-1], np.int32)
    category = np.empty(memory_start[-1], np.int8)
    size, at_end = np.empty(memory_start[-1]), np.empty(memory_start[-1], np.bool_)
    part_work = part_work.copy()
    for s in stamps:
        t = s.template
        wait_on[_rows(wait_start, s.base, t.wait_ref)] = t.waits(s.base, s.wait_slots)
        part[_rows(part_start, s.base, t.part_ref)] = _parts(s)
        for first, of_axis in zip(s.parts, t.part_works, strict=True):
            part_work[first[:, None] + np.arange(len(of_axis))] = of_axis
        rows = _rows(memory_start, s.base, t.memory_bytes)
        category[rows], size[rows], at_end[rows] = (
            t.memory_category,
            t.memory_bytes,
            t.memory_at_end,
        )
    return Graph(
        names=tuple(tables.names),  # type: ignore[arg-type]
        works=tuple(tables.works),  # type: ignore[arg-type]
        streams=tuple(tables.streams),  # type: ignore[arg-type]
        categories=tuple(tables.categories),  # type: ignore[arg-type]
        lag=zeros(n),
        wait_start=wait_start,
        wait_on=wait_on,
        wait_lag=zeros(len(wait_on)),
        part_start=part_start,
        part=part,
        part_tail=zeros(len(part)),
        part_work=part_work,
        memory_start=memory_start,
        memory_category=category,
        memory_bytes=size,
        memory_at_end=at_end,
        persistent=persistent,
        stands_for=stands_for,
        **columns,
    )


def _columns(stamps: Sequence[Stamp]) -> dict[str, NDArray[Any]]:
    """Return the columns of all ops: those of their templates, and those of their copies."""
    templates = {id(s.template): s.template for s in stamps}
    begins = dict(zip(templates, _begins(map(len, templates.values())), strict=False))
    base = _of_copies([s.base for s in stamps], stamps, np.int64)
    order = np.argsort(base)
    length = _of_copies([len(s.template) for s in stamps], stamps, np.int64)[order]
    first = _of_copies([begins[id(s.template)] for s in stamps], stamps, np.int64)
    local = np.repeat((first - base)[order], length)
    local += np.arange(len(local))  # rows of all templates, one behind another
    out = {}
    for key in LOCAL:
        out[key] = np.concatenate([getattr(t, key) for t in templates.values()])[local]
    for key, kind in OF_COPY.items():
        of = _of_copies([getattr(s, key) for s in stamps], stamps, kind)
        out[key] = np.repeat(of[order], length)
    return out


def _begins(lengths: Iterable[int]) -> list[int]:
    return [0, *accumulate(lengths)]


def _of_copies(
    values: Sequence[Any], stamps: Sequence[Stamp], kind: type[np.signedinteger[Any]]
) -> NDArray[Any]:
    """Return a row per copy of each stamp, given what all copies of it have, or each of them."""
    pairs = zip(values, stamps, strict=True)
    return np.concatenate([np.broadcast_to(np.asarray(v, kind), len(s.base)) for v, s in pairs])


def _rows(start: Ints, base: Longs, like: NDArray[np.generic]) -> Longs:
    return start[base].astype(np.int64)[:, None] + np.arange(len(like))


def _parts(of: Stamp) -> Longs:
    """Return the parts of every copy, one row per copy."""
    t = of.template
    out = np.broadcast_to(t.part_ref, (len(of.base), len(t.part_ref))).copy()
    for axis, first in enumerate(of.parts):
        out[:, t.part_axis == axis] += first[:, None]
    for column in np.flatnonzero(t.part_axis < 0):
        out[:, column] = of.part_slots[t.part_ref[column]]
    return out
