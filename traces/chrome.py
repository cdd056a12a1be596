"""Shared by our trace files: which ops to write, time stamps, events streamed into a gzip file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from schedules.input_error import InputError
from sim.graph import Floats, Longs
from sim.timeline import Timeline

LIMIT = 300_000
"""With more ops, only first, middle and last pipeline stage are written unless ranks are given."""

Event = dict[str, Any]
Progress = Callable[[int, int], object]
"""Called now and then with the number of ops written so far and of all ops to write."""


class Written(NamedTuple):
    """What went into a file or folder."""

    ranks: tuple[int, ...]
    ops: int
    complete: bool  # every op of the timeline


def select(
    timeline: Timeline, ranks: Sequence[int] | None, window: tuple[float, float] | None
) -> tuple[Longs, Written]:
    """Return the ops to write: those of these ranks that lie, in part, inside the window (seconds).

    Raises InputError for a rank that was not simulated.
    """
    graph = timeline.graph
    there = graph.ranks().tolist()
    if ranks is None:
        ranks = there if len(graph) <= LIMIT else _ends_and_middle(timeline)
    for rank in ranks:
        if rank not in there:
            raise InputError(f"rank {rank} was not simulated; there are {_few(there)}")
    keep = np.isin(graph.rank, np.array(ranks, np.int32))
    if window is not None:
        keep &= (timeline.end >= window[0]) & (timeline.start <= window[1])
    ops = np.flatnonzero(keep)
    return ops, Written(tuple(sorted({*ranks})), len(ops), len(ops) == len(graph))


def stamps(timeline: Timeline, ops: Longs) -> tuple[Floats, Floats]:
    """Return begin and duration of each op, in microseconds since the first start.

    Begin and end are rounded to whole nanoseconds, not the duration. Readers differ. Some multiply
    by 1,000 and cut, so a begin that would lose a nanosecond that way becomes the next larger
    float. Others add begin and duration as floats, so that sum never passes the end. Then ops that
    touch are never taken to overlap; at worst a reader sees a nanosecond between them. Shapes (N,).
    """
    return window_stamps(timeline, timeline.start[ops], timeline.end[ops])


def window_stamps(timeline: Timeline, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the same for any stretches of a timeline, (N,) arrays in seconds."""
    zero = timeline.start.min(initial=np.inf)
    begin, end = (_uncut(np.rint((column - zero) * 1e9)) for column in (start, end))
    duration = end - begin
    while (late := begin + duration > end).any():
        duration[late] = np.nextafter(duration[late], 0.0)
    return begin, duration


def write_events(path: Path, head: Mapping[str, Any], events: Iterable[Event]) -> None:
    """Write one JSON object: the entries of ``head``, then the events, one a line.

    The same events give the same bytes: no time stamp and no file name go into the gzip header.
    """
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 4, raw, mtime=0) as file:
        # json puts a blank after each colon; without it HTA does not find the rank
        file.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [\n')
        separator = b""
        lines: list[bytes] = []
        for event in events:
            lines.append(orjson.dumps(event))
            if len(lines) == 4096:
                file.write(separator + b",\n".join(lines))
                separator, lines = b",\n", []
        if lines:
            file.write(separator + b",\n".join(lines))
        file.write(b"\n]}\n")


def named(of: str, name: str, order: int, pid: int, tid: int = 0) -> list[Event]:
    """Return the events that name and place a "process" or "thread"."""
    where = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {"name": f"{of}_name", "args": {"name": name}, **where},
        {"name": f"{of}_sort_index", "args": {"sort_index": order}, **where},
    ]


def streams_of(timeline: Timeline, ops: Longs) -> list[tuple[int, int]]:
    """Return (rank, row of ``graph.streams``) of all streams with ops: compute first, host last."""
    graph = timeline.graph
    pairs = np.unique(graph.rank[ops].astype(np.int64) * len(graph.streams) + graph.stream[ops])
    found = [divmod(int(pair), len(graph.streams)) for pair in pairs]

    def place(pair: tuple[int, int]) -> tuple[int, int, str]:
        name = graph.streams[pair[1]]
        return pair[0], {"compute": 0, "host": 2}.get(name, 1), name

    return sorted(found, key=place)


def _ends_and_middle(timeline: Timeline) -> list[int]:
    """Return the lowest rank of the first, the middle and the last pipeline stage."""
    graph = timeline.graph
    first: dict[int, int] = {}  # stage -> rank; of a rank's chunks the first counts
    ranks = graph.ranks()
    stage = np.full(len(ranks), np.iinfo(np.int16).max, np.int64)
    staged = graph.stage >= 0
    np.minimum.at(stage, np.searchsorted(ranks, graph.rank[staged]), graph.stage[staged])
    for rank, of in zip(ranks.tolist(), stage.tolist(), strict=True):
        first.setdefault(of, rank)
    stages = sorted(first)
    return sorted({first[stages[k]] for k in (0, len(stages) // 2, -1)})


def _uncut(nanoseconds: Floats) -> Floats:
    value = nanoseconds / 1e3
    return np.where(np.trunc(value * 1e3) < nanoseconds, np.nextafter(value, np.inf), value)


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... {ranks[-1]}"
