"""Our own trace files as recordings: what was simulated, replayed with the times that it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from schedules._input_error import InputError
from sim.graph import Fixed, Graph
from sim.longest import taken
from sim.timeline import dimension, kind
from traces import cut, perfetto_read
from traces.packed import beginning
from traces.recording import Recording, Report, Selection

MARK = b'"traincast": {"format"'


def recognises(path: Path) -> bool:
    """Whether :func:`traces.perfetto.write` wrote this file."""
    return MARK in beginning(path)


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read a ``timeline.json.gz``; its ops keep the works that they were simulated with."""
    if len(paths) != 1:
        raise InputError(f"one timeline of traincast is read at a time, and not {len(paths)}")
    report("reading", 0, 0)
    timeline = perfetto_read.read(paths[0])
    if not len(timeline.graph):
        raise InputError(f"{paths[0]} holds no ops")
    if selection.step is not None:
        timeline = cut.of_step(timeline, selection.step, paths[0])
    timeline = cut.select(timeline, selection)
    return Recording(timeline, "traincast", tuple(paths), cut.counts(timeline.graph))


def as_recorded(recording: Recording) -> Graph:
    """The graph whose ops take what they took, whatever they shared; lags stay as they are.

    A part takes what its shortest member took, from the moment when all were there.
    """
    timeline = recording.timeline
    graph, seconds = timeline.graph, taken(timeline)
    shortest = np.zeros(len(graph.part_work))
    shortest[graph.part] = seconds.member - graph.part_tail
    op, rows = _fixed(graph, seconds.op, graph.work, 0)
    part, part_rows = _fixed(graph, shortest, graph.part_work, len(op))
    return replace(graph, works=(*op, *part), work=rows, part_work=part_rows)


def _fixed(
    graph: Graph, seconds: cut.Floats, work: cut.Ints, first: int
) -> tuple[list[Fixed], cut.Ints]:
    """Distinct fixed works of these durations and kinds, and the row of each, from ``first``."""
    table: dict[Fixed, int] = {}
    rows = []
    for row, of in zip(work.tolist(), seconds.tolist(), strict=True):
        made = graph.works[row]
        where = dimension(made)
        fixed = Fixed(of, "communication" if where else kind(made), where)
        rows.append(table.setdefault(fixed, first + len(table)))
    return [*table], np.array(rows, np.int32)
