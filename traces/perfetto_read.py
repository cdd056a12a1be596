"""Our own trace file back into the timeline that was written."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import orjson

from schedules._input_error import InputError
from sim.graph import Builder, Communication, Compute, Copy, Fixed, Graph, Host, Memory, Work
from sim.timeline import Timeline
from traces import packed
from traces.chrome import Event

WORKS: dict[str, Callable[..., Work]] = {
    of.__name__: of for of in (Compute, Communication, Copy, Host, Fixed)
}


def read(path: Path | str) -> Timeline:
    """Read a file of :func:`traces.perfetto.write`. Raises InputError for any other file."""
    try:
        content = orjson.loads(packed.content(Path(path)))
        tables, events = content["traincast"], content["traceEvents"]
    except (gzip.BadGzipFile, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a timeline.json.gz that traincast wrote") from error
    try:
        timeline = _timeline(tables, events)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} has been changed since traincast wrote it: an op of it cannot be read"
        ) from error
    if not (np.isfinite(timeline.start) & (timeline.end >= timeline.start)).all():
        raise InputError(f"{path} has an op whose end_s is before its start_s")
    return timeline


def _timeline(tables: Event, events: list[Event]) -> Timeline:
    streams = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [
        {**e["args"], "name": e["name"], "rank": e["pid"], "stream": streams[e["tid"]]}
        for e in events
        if e["ph"] == "X" and "op" in e["args"]  # not of the critical path's own track
    ]
    graph = _graph(tables, slices)
    start, end = (np.array([args[k] for args in slices], float) for k in ("start_s", "end_s"))
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
    builder.resident = {int(rank): of for rank, of in tables["resident"].items()}
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


def work_of(of: Event) -> Work:
    """The work that a written row says: its type and its fields."""
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in of.items() if k != "type"}
    return WORKS[of["type"]](**fields)
