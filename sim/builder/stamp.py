"""Stamps: copies of templates for every microbatch and rank, and the graph that they make up.

No function here loops over the ops of a graph: only over stamps and the axes and slots of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.builder.slots import Slot
from sim.builder.template import Longs, Tables, Template
from sim.graph import Graph, Ints, offsets, zeros


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
    n = sum(len(s.template) * len(s.base) for s in stamps)
    counts = {key: np.zeros(n, np.int32) for key in ("wait", "part", "memory")}
    columns: dict[str, NDArray[Any]] = {
        "name": np.empty(n, np.int32),
        "work": np.empty(n, np.int32),
        "stream": np.empty(n, np.int32),
        "phase": np.empty(n, np.int8),
        "layer": np.empty(n, np.int16),
    }
    rank, stage = np.empty(n, np.int32), np.empty(n, np.int16)
    microbatch, step = np.empty(n, np.int32), np.empty(n, np.int32)
    for s in stamps:
        rows = s.base[:, None] + np.arange(len(s.template))
        for key, column in columns.items():
            column[rows] = getattr(s.template, key)
        for key, count in counts.items():
            count[rows] = getattr(s.template, f"{key}_count")
        rank[rows], stage[rows] = s.rank, s.stage
        microbatch[rows] = s.microbatch[:, None]
        step[rows] = np.reshape(s.step, (-1, 1))
    wait_start, part_start = offsets(counts["wait"]), offsets(counts["part"])
    memory_start = offsets(counts["memory"])
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
        rank=rank,
        stage=stage,
        microbatch=microbatch,
        step=step,
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
