"""Cuts a timeline: some of its ops, and the relations among them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.graph import Bools, Floats, Graph, Ints, offsets, owners
from sim.timeline import Timeline
from traces.recording import Selection

__all__ = ["Flags", "Floats", "Ints", "counts", "keep", "of_step", "select", "subgraph"]

Flags = Bools
PER_OP = ("name", "work", "rank", "stream", "phase", "stage", "microbatch", "layer", "step", "lag")


def select(timeline: Timeline, selection: Selection) -> Timeline:
    """Return the ops of some ranks that ran, at least in part, inside a window.

    Raises InputError for a rank that is not there, or when nothing is left.
    """
    graph, kept = timeline.graph, np.ones(len(timeline.graph), np.bool_)
    if selection.ranks is not None:
        there = graph.ranks().tolist()
        if missing := [rank for rank in selection.ranks if rank not in there]:
            some = ", ".join(map(str, there[:8])) + (", ..." if len(there) > 8 else "")
            raise InputError(f"no rank {missing[0]} was recorded; there are {some}")
        kept &= np.isin(graph.rank, np.array(selection.ranks, np.int32))
    if selection.window is not None:
        first, last = (timeline.start.min() + t for t in selection.window)
        kept &= (timeline.end >= first) & (timeline.start <= last)
    if not kept.any():
        raise InputError(f"no op lies in the window; the recording lasts {timeline.seconds:g} s")
    return timeline if kept.all() else keep(timeline, kept)


def of_step(timeline: Timeline, step: int, path: Path) -> Timeline:
    """Return the ops of one step. Raises InputError if the file has no step of that number."""
    kept = np.asarray(timeline.graph.step == step)
    if not kept.any():
        raise InputError(f"{path} has no step {step}; there are 0 to {timeline.graph.step.max()}")
    return keep(timeline, kept)


def counts(graph: Graph) -> dict[str, int]:
    """Count what a recording says about a graph whose ops are all of GPUs."""
    members = np.bincount(graph.part, minlength=len(graph.part_work))
    return {
        "gpu_ops": len(graph),
        "collectives": len(members),
        "collectives_matched": int((members > 1).sum()),
    }


def keep(timeline: Timeline, kept: Flags) -> Timeline:
    """Return the ops marked True. Waits for others are dropped; a part keeps members that stay."""
    return Timeline(subgraph(timeline.graph, kept), timeline.start[kept], timeline.end[kept])


def subgraph(graph: Graph, kept: Flags) -> Graph:
    """Return the part of a graph with the ops marked True."""
    number = np.cumsum(kept, dtype=np.int32) - np.int32(1)
    rows, wait_start = _rows(graph.wait_start, kept)
    rows &= kept[graph.wait_on]
    members, part_start = _rows(graph.part_start, kept)
    changes, memory_start = _rows(graph.memory_start, kept)
    wait_start = offsets(np.bincount(owners(graph.wait_start)[rows], minlength=len(graph))[kept])
    parts, part = np.unique(graph.part[members], return_inverse=True)
    columns: dict[str, Any] = {name: getattr(graph, name)[kept] for name in PER_OP}
    used, work = np.unique(
        np.concatenate([columns.pop("work"), graph.part_work[parts]]), return_inverse=True
    )
    own = len(work) - len(parts)
    return replace(
        graph,
        works=tuple(graph.works[k] for k in used),
        work=np.array(work[:own], np.int32),
        wait_start=wait_start,
        wait_on=number[graph.wait_on[rows]],
        wait_lag=graph.wait_lag[rows],
        part_start=part_start,
        part=part.astype(np.int32),
        part_tail=graph.part_tail[members],
        part_work=np.array(work[own:], np.int32),
        memory_start=memory_start,
        memory_category=graph.memory_category[changes],
        memory_bytes=graph.memory_bytes[changes],
        memory_at_end=graph.memory_at_end[changes],
        **columns,
    )


def _rows(start: Ints, kept: Flags) -> tuple[Flags, Ints]:
    """Return which rows belong to ops that stay, and where those of each op then begin."""
    return np.repeat(kept, np.diff(start)), offsets(np.diff(start)[kept])
