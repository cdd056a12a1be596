"""Reads our own trace file back into the timeline that was written."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import orjson

from schedules.input_error import InputError
from sim.graph import (
    PHASES,
    Builder,
    Communication,
    Compute,
    Copy,
    Fixed,
    Graph,
    Host,
    Memory,
    Work,
)
from sim.timeline import Timeline
from traces import packed
from traces.checked import (
    COUNT,
    NUMBER,
    POSITIVE,
    SHORT,
    TABLE,
    TEXT,
    WHOLE,
    check,
    list_of,
    numbered,
    one_of,
    row_of,
)
from traces.chrome import Event
from traces.own import priced_machine
from traces.own.priced_machine import PricedMachine

WORKS: dict[str, Any] = {of.__name__: of for of in (Compute, Communication, Copy, Host, Fixed)}
TABLES = {
    "works": list_of(TABLE), "parts": numbered(COUNT), "resident": numbered(TABLE),
    "stands_for": numbered(COUNT),
}  # fmt: skip
THREAD = {"tid": WHOLE, "args": TABLE}
SLICE = {"name": TEXT, "pid": COUNT, "tid": WHOLE, "args": TABLE}
ARGS = {
    "op": COUNT, "work": COUNT, "start_s": NUMBER, "end_s": NUMBER,
    "phase": one_of(PHASES).or_none(), "stage": SHORT.or_none(), "layer": SHORT.or_none(),
    "microbatch": WHOLE.or_none(), "step": COUNT.or_none(), "lag": NUMBER.or_none(),
    "waits": list_of(COUNT).or_none(), "wait_lags": list_of(NUMBER).or_none(),
    "parts": list_of(COUNT).or_none(), "part_tails": list_of(NUMBER).or_none(),
    "memory": list_of(row_of(TEXT, NUMBER, one_of(("start", "end")))).or_none(),
}  # fmt: skip
"""What is read from the file's head, from its threads and ops, and from an op's args."""
_KINDS = {str: TEXT, float: POSITIVE, tuple[int, ...]: list_of(WHOLE)}
_FIELDS = {
    name: {
        field: _KINDS[kind] if field not in of._field_defaults else _KINDS[kind].or_none()
        for field, kind in get_type_hints(of).items()
    }
    for name, of in WORKS.items()
}


def read(path: Path | str) -> Timeline:
    """Read a file of :func:`traces.own.perfetto.write`. Raises InputError for any other file."""
    return read_priced(path)[0]


def read_priced(path: Path | str) -> tuple[Timeline, PricedMachine | None]:
    """Read a file of :func:`traces.own.perfetto.write`, and its machine if it has one."""
    try:
        content = orjson.loads(packed.content(Path(path)))
        tables, events = content["traincast"], content["traceEvents"]
    except (gzip.BadGzipFile, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a timeline.json.gz that traincast wrote") from error
    try:
        timeline = _timeline(tables, events)
        works = [work_of(of) for of in tables["works"]]
        machine = priced_machine.read(tables, works, timeline.graph)
    except (InputError, LookupError) as error:
        raise InputError(
            f"{path} has been changed since traincast wrote it: {_words(error)}"
        ) from error
    if (timeline.end < timeline.start).any():
        raise InputError(f"{path} has an op whose end_s is before its start_s")
    return timeline, machine


def _words(error: InputError | LookupError) -> str:
    missing = f"an op refers to what is not there ({error})"
    return missing if isinstance(error, LookupError) else str(error)


def _timeline(tables: Event, events: list[Event]) -> Timeline:
    check(tables, TABLES, "its head")
    check({"traceEvents": events}, {"traceEvents": list_of(TABLE)}, "it")
    for rank, of in tables["resident"].items():
        check(of, dict.fromkeys(of, NUMBER), f"resident of rank {rank}")
    streams, slices = {}, []
    for number, event in enumerate(events):
        where = f"event {number}"
        if event.get("name") == "thread_name":
            check(event, THREAD, where)
            check(event["args"], {"name": TEXT}, f"{where}, args")
            streams[event["tid"]] = event["args"]["name"]
        elif event.get("ph") == "X":
            check(event, SLICE, where)
            if "op" in event["args"]:  # not of the critical path's own track
                check(event["args"], ARGS, f"{where}, args")
                slices.append(event)
    rows = [
        {**e["args"], "name": e["name"], "rank": e["pid"], "stream": streams[e["tid"]]}
        for e in slices
    ]
    graph = _graph(tables, rows)
    start, end = (np.array([args[k] for args in rows], float) for k in ("start_s", "end_s"))
    return Timeline(graph, start, end)


def _graph(tables: Event, slices: list[Event]) -> Graph:
    """Build the graph again; waits for ops that were not written are left out."""
    works = [work_of(of) for of in tables["works"]]
    index = {args["op"]: k for k, args in enumerate(slices)}
    builder = Builder()
    members: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for k, args in enumerate(slices):
        _add(builder, args, works[args["work"]])
        lags = args.get("wait_lags", repeat(0.0))
        for earlier, lag in zip(args.get("waits", ()), lags, strict=False):
            if earlier in index:
                builder.wait(k, index[earlier], lag)
        for part, tail in zip(
            args.get("parts", ()), args.get("part_tails", repeat(0.0)), strict=False
        ):
            members[part].append((k, tail))
    for part, of in sorted(members.items()):
        builder.join([k for k, _ in of], works[tables["parts"][str(part)]], [t for _, t in of])
    builder.persistent = {int(rank): of for rank, of in tables["resident"].items()}
    clones = {int(rank): n for rank, n in tables["stands_for"].items()}
    return replace(builder.graph(), stands_for=clones)


def _add(builder: Builder, args: Event, work: Work) -> None:
    builder.add(
        args["name"],
        args["rank"],
        args["stream"],
        work,
        phase=args.get("phase", ""),
        stage=args.get("stage", -1),
        microbatch=args.get("microbatch", -1),
        layer=args.get("layer", -1),
        step=args.get("step", 0),
        lag=args.get("lag", 0.0),
        memory=[Memory(*change) for change in args.get("memory", ())],
    )


def work_of(of: Any) -> Work:
    """Return the work that a written row describes by type and fields. Raises InputError."""
    check(of, {"type": one_of(WORKS)}, "a work")
    cls = WORKS[of["type"]]
    check(of, _FIELDS[of["type"]], f"a work {of['type']}")
    found = {k: of[k] for k in cls._fields if k in of}
    work: Work = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    return work
