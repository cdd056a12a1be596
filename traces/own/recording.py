"""Reads our own trace files as recordings: simulated ops with the times that they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from schedules.input_error import InputError
from sim.analysis.longest import taken
from sim.graph import Fixed, Floats, Graph, owners
from sim.machine.hardware import Machine
from sim.timeline import dimension, kind
from traces import cut
from traces.own import read as perfetto_read
from traces.packed import beginning
from traces.recording import Recording, Report, Selection

MARK = b'"traincast": {"format"'


def recognises(path: Path) -> bool:
    """Return whether :func:`traces.own.perfetto.write` wrote this file."""
    return MARK in beginning(path)


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read a ``timeline.json.gz``; its ops keep the works that they were simulated with."""
    if len(paths) != 1:
        raise InputError(f"one timeline of traincast is read at a time, not {len(paths)}")
    report("reading", 0, 0)
    timeline, priced = perfetto_read.read_priced(paths[0])
    whole = len(timeline.graph)
    if not len(timeline.graph):
        raise InputError(f"{paths[0]} holds no ops")
    if selection.step is not None:
        timeline = cut.of_step(timeline, selection.step, paths[0])
    timeline = cut.select(timeline, selection)
    priced = priced if len(timeline.graph) == whole else None
    counts = cut.counts(timeline.graph)
    sms = None if priced is None else held(timeline.graph, priced.machine)
    return Recording(timeline, "traincast", tuple(paths), counts, priced=priced, sms=sms)


def held(graph: Graph, machine: Machine) -> Floats:
    """Return, per op, the share of its GPU's SMs that its communication holds, (ops,)."""
    sms = np.zeros(len(graph))
    np.maximum.at(sms, owners(graph.part_start), machine.sms[graph.part_work[graph.part]])
    return np.asarray(sms / max(machine.gpu_sms, 1), np.float64)


def as_recorded(recording: Recording) -> Graph:
    """Return the graph whose ops take what they took, whatever they shared; lags stay.

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
    """Return distinct fixed works of these durations and kinds, and each row, from ``first``."""
    table: dict[Fixed, int] = {}
    rows = []
    for row, of in zip(work.tolist(), seconds.tolist(), strict=True):
        made = graph.works[row]
        where = dimension(made)
        fixed = Fixed(of, "communication" if where else kind(made), where)
        rows.append(table.setdefault(fixed, first + len(table)))
    return [*table], np.array(rows, np.int32)
