"""Writes our own trace file: a timeline to look at in Perfetto, and to read back as it was.

There is one process per rank, one thread per stream and one slice per op. Arrows show the waits
that decided when an op started, and the ops that met; the critical path is a process of its own.
The args hold the exact seconds, all relations and each op's slack. So what is written whole reads
back equal, and what is written in part reads back as that part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.analysis.relations import binding, rendezvous
from sim.graph import PHASES, Communication, Floats, Graph, Longs, Work
from sim.timeline import Timeline, dimension, kind
from traces.chrome import Event, Progress, Written, named, select, stamps, streams_of, write_events
from traces.own import path as perfetto_path
from traces.own import priced_machine
from traces.own.priced_machine import PricedMachine
from traces.own.read import read

__all__ = ["read", "write"]

COLOURS = {"F": "good", "R": "olive", "I": "bad", "B": "terrible", "W": "yellow", "O": "grey"}
_CHUNK = 8192


def write(
    timeline: Timeline,
    path: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    progress: Progress | None = None,
    of: PricedMachine | None = None,
) -> Written:
    """Write a gzipped trace, and return what went into it.

    ``of`` is the machine that the timeline was simulated on; with it, a file of the whole timeline
    can be simulated again.

    ``ranks`` and ``window`` (seconds) select; above 300,000 ops the first, middle and last pipeline
    stage are written unless ``ranks`` says otherwise. Raises InputError for a rank that was not
    simulated.
    """
    ops, written = select(timeline, ranks, window)
    head: Event = {"displayTimeUnit": "ms", "traincast": _tables(timeline.graph, ops)}
    if of is not None and written.complete:
        head["traincast"] |= priced_machine.table(timeline.graph, of)
    write_events(Path(path), head, _events(timeline, ops, progress))
    return written


def _events(timeline: Timeline, ops: Longs, progress: Progress | None) -> Iterator[Event]:
    graph = timeline.graph
    threads = {pair: tid for tid, pair in enumerate(streams_of(timeline, ops), 1)}
    yield from _names(graph, ops, threads)
    begin, duration = stamps(timeline, ops)
    flows = _flows(timeline, ops[duration > 0])
    static = [_work_args(row, work) for row, work in enumerate(graph.works)]
    why = perfetto_path.Why(timeline)
    yield from why.track(ops)
    for a in range(0, len(ops), _CHUNK):
        b = min(a + _CHUNK, len(ops))
        times = zip(begin[a:b].tolist(), duration[a:b].tolist(), strict=True)
        for row, (ts, dur) in zip(_rows(timeline, ops[a:b]), times, strict=True):
            place = {"pid": row.rank, "tid": threads[row.rank, row.stream], "ts": ts}
            event = {"ph": "X", "name": graph.names[row.name], **place, "dur": dur}
            if row.phase:
                event["cname"] = COLOURS[PHASES[row.phase]]
            event["args"] = _args(graph, row) | static[row.work] | why.of(row.op)
            yield event
            for ph, number, name in flows.get(row.op, ()):
                yield {"ph": ph, "id": number, "cat": name, "name": name, **place, "bp": "e"}
        if progress is not None:
            progress(b, len(ops))


class _Row(NamedTuple):
    """One op as plain numbers: what the columns hold, and where its CSR rows begin and end."""

    op: int
    rank: int
    stream: int
    name: int
    work: int
    phase: int
    stage: int
    microbatch: int
    layer: int
    step: int
    lag: float
    start: float
    end: float
    waits: int
    parts: int
    memory: int
    waits_end: int
    parts_end: int
    memory_end: int


def _rows(timeline: Timeline, ops: Longs) -> Iterator[_Row]:
    """Return the ops as plain numbers; taking them from the columns one by one would be slow."""
    graph = timeline.graph
    columns = [ops, *(getattr(graph, name)[ops] for name in _Row._fields[1:11])]
    columns += [timeline.start[ops], timeline.end[ops]]
    bounds = graph.wait_start, graph.part_start, graph.memory_start
    columns += [of[ops] for of in bounds] + [of[ops + 1] for of in bounds]
    return map(_Row._make, zip(*(column.tolist() for column in columns), strict=True))


def _args(graph: Graph, row: _Row) -> Event:
    """Return the args of one op; what it does not have is left out."""
    args: Event = {"op": row.op, "start_s": row.start, "end_s": row.end}
    for key, number in (("stage", row.stage), ("microbatch", row.microbatch), ("layer", row.layer)):
        if number >= 0:
            args[key] = number
    if row.step:
        args["step"] = row.step
    if row.phase:
        args["phase"] = PHASES[row.phase]
    if row.lag:
        args["lag"] = row.lag
    if row.waits < row.waits_end:
        args["waits"] = graph.wait_on[row.waits : row.waits_end].tolist()
        args |= _unless_zero("wait_lags", graph.wait_lag[row.waits : row.waits_end])
    if row.parts < row.parts_end:
        args["parts"] = graph.part[row.parts : row.parts_end].tolist()
        args |= _unless_zero("part_tails", graph.part_tail[row.parts : row.parts_end])
    if row.memory < row.memory_end:
        args["memory"] = [_change(graph, k) for k in range(row.memory, row.memory_end)]
    return args


def _unless_zero(key: str, column: Floats) -> Event:
    return {key: column.tolist()} if column.any() else {}


def _change(graph: Graph, k: int) -> tuple[str, float, str]:
    at = "end" if graph.memory_at_end[k] else "start"
    return graph.categories[graph.memory_category[k]], float(graph.memory_bytes[k]), at


def _work_args(row: int, work: Work) -> Event:
    args: Event = {"kind": kind(work), "work": row}
    if dimension(work):
        args["dimension"] = dimension(work)
    if isinstance(work, Communication):
        args["group_size"] = len(work.ranks)
    return args | {key: getattr(work, key) for key in ("flops", "bytes") if hasattr(work, key)}


def _names(graph: Graph, ops: Longs, threads: dict[tuple[int, int], int]) -> Iterator[Event]:
    rank, stage = graph.rank[ops], graph.stage[ops]
    for one in np.unique(rank).tolist():
        stages = np.unique(stage[(rank == one) & (stage >= 0)]).tolist()
        label = f" · stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}" if stages else ""
        clones = graph.stands_for.get(one, 1)
        label += f" · stands for {clones} ranks" if clones > 1 else ""
        yield from named("process", f"rank {one}{label}", one, one)
    for (one, stream), tid in threads.items():
        yield from named("thread", graph.streams[stream], tid, one, tid)


def _flows(timeline: Timeline, ops: Longs) -> dict[int, list[tuple[str, int, str]]]:
    """Return by op the arrows that begin ("s") or end ("f") there, each with its number and name.

    An arrow "wait" comes from the op on another stream whose end let this one start; an arrow
    "meet" comes from the member of a collective or transfer that came last.
    """
    graph = timeline.graph
    written = np.zeros(len(graph), bool)
    written[ops] = True
    need, came = binding(timeline)[ops], rendezvous(timeline)[0][ops]
    apart = (graph.rank[need] != graph.rank[ops]) | (graph.stream[need] != graph.stream[ops])
    arrows = [("wait", need, apart & (need >= 0)), ("meet", came, came != ops)]
    flows: defaultdict[int, list[tuple[str, int, str]]] = defaultdict(list)
    number = count(1)
    for name, source, there in arrows:
        there &= written[source]
        for a, b, k in zip(source[there].tolist(), ops[there].tolist(), number, strict=False):
            flows[a].append(("s", k, name))
            flows[b].append(("f", k, name))
    return flows


def _tables(graph: Graph, ops: Longs) -> Event:
    """Return what the ops refer to by row, and what belongs to no op."""
    member = np.zeros(len(graph), bool)
    member[ops] = True
    parts = np.unique(graph.part[np.repeat(member, np.diff(graph.part_start))])
    return {
        "format": 1,
        "works": [{"type": type(work).__name__, **work._asdict()} for work in graph.works],
        "parts": dict(zip(parts.tolist(), graph.part_work[parts].tolist(), strict=True)),
        "resident": {rank: dict(of) for rank, of in graph.persistent.items()},
        "stands_for": dict(graph.stands_for),
    }
