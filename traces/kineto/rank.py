"""One rank's file in rows: what ran on the GPU, what the host called, and what surrounds it.

Times are whole nanoseconds: since 1970 (``baseTimeNanoseconds`` is added), or on whatever clock the
file has.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from schedules._input_error import InputError
from traces.kineto import names
from traces.kineto.events import Event, Source
from traces.kineto.message import Message, message
from traces.recording import Report

LONGEST = 2**61
"""Nanoseconds, 73 years: sums of three such fit into 64 bits."""
MOST_RANK = 2**31 - 1


class GpuOp(NamedTuple):
    """A kernel, copy or memset."""

    name: str
    kind: str
    start: int
    end: int
    device: int
    stream: int
    correlation: int  # of the call that launched it; -1: unknown
    message: Message | None


class Call(NamedTuple):
    """A call of CUDA or HIP on the host."""

    name: str
    thread: int
    start: int
    end: int
    correlation: int


class Sync(NamedTuple):
    """What a file with ``cuda_sync`` events tells of a call (the one of the same correlation)."""

    kind: str  # "Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync"
    stream: int  # that waits; -1: the host does
    on_stream: int  # that is waited for; -1: unknown, or all
    on_call: int  # correlation of the cudaEventRecord; -1: unknown
    correlation: int
    start: int


class Mark(NamedTuple):
    """An annotation on the host."""

    name: str
    thread: int
    start: int
    end: int


class Posted(NamedTuple):
    """A collective on the host (``record_param_comms``): posted, or waited for."""

    thread: int
    start: int
    end: int
    message: Message


class Operators:
    """Operators and calls on the host, a row each: columns, as there are millions of them."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.thread, self.start, self.end, self.name = (array("q") for _ in range(4))

    def add(self, name: str, thread: int, start: int, end: int) -> None:
        """Add a row; nanoseconds."""
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.thread.append(thread)
        self.start.append(start)
        self.end.append(end)

    def shift(self, by: int) -> None:
        """Move all rows by nanoseconds."""
        for column in ("start", "end"):
            moved = np.array(getattr(self, column), np.int64) + by
            setattr(self, column, array("q", moved.tobytes()))


@dataclass
class RankTrace:
    """Everything of one file that a recording needs, in the file's order until sorted."""

    path: Path
    rank: int = 0
    world_size: int = 0
    gpu: list[GpuOp] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by name of process group
    operators: Operators = field(default_factory=Operators)
    warnings: list[str] = field(default_factory=list)


def read(path: Path, report: Report) -> RankTrace:
    """Read one file."""
    source = Source(path, report)
    trace = RankTrace(path)
    for event in source.events():
        if event.get("ph") == "X":
            _take(trace, event)
    trace.warnings += source.warnings
    _settle(trace, source.facts)
    trace.gpu.sort(key=lambda op: (op.device, op.stream, op.start, op.end))
    for rows in (trace.calls, trace.marks, trace.posted):
        rows.sort(key=lambda row: (row.start, -row.end))
    return trace


def _take(trace: RankTrace, event: Event) -> None:
    what = names.CATEGORIES.get(str(event.get("cat", "")).lower())
    if what is None or "ts" not in event:
        return
    start = _time(trace, event, "ts")
    end = start + max(_time(trace, event, "dur"), 0)
    args, name = _table(event.get("args")), str(event.get("name", ""))
    if what in (names.OPERATOR, names.CALL) and not name.startswith("ProfilerStep"):
        trace.operators.add(name, _number(event.get("tid")), start, end)
    if what in (names.KERNEL, names.COPY):
        trace.gpu.append(_gpu_op(event, what, name, start, end, args))
    elif what == names.CALL:
        if not names.SKIPPED.search(name):
            call = Call(
                name, _number(event.get("tid")), start, end, _number(args.get("correlation"))
            )
            trace.calls.append(call)
    elif what == names.SYNC:
        trace.syncs.append(_sync(name, args, start))
    elif name == "record_param_comms":
        trace.posted.append(Posted(_number(event.get("tid")), start, end, message(args)))
    elif what == names.MARK or name.startswith("ProfilerStep"):
        trace.marks.append(Mark(name, _number(event.get("tid")), start, end))


def _time(trace: RankTrace, event: Event, key: str) -> int:
    """Nanoseconds of an event. Raises InputError where they are no number or no clock's."""
    try:
        found = nanoseconds(event.get(key, 0))
    except (ArithmeticError, TypeError, ValueError):
        found = LONGEST
    if abs(found) >= LONGEST:
        raise InputError(
            f"{trace.path} has an event whose {key} is {event[key]!s:.40}; "
            f"a number of microseconds below {LONGEST / 1000:.2g} would do"
        )
    return found


def _table(of: Any) -> Event:
    return of if isinstance(of, dict) else {}


def _gpu_op(event: Event, what: str, name: str, start: int, end: int, args: Event) -> GpuOp:
    return GpuOp(
        name,
        names.kind_of(name, what),
        start,
        end,
        _number(args.get("device", event.get("pid"))),
        _number(args.get("stream", event.get("tid"))),
        _number(args.get("correlation")),
        message(args) if "Collective name" in args else None,
    )


def _sync(name: str, args: Event, start: int) -> Sync:
    return Sync(
        str(args.get("cuda_sync_kind", name)),
        _stream(args.get("stream")),
        _stream(args.get("wait_on_stream")),
        _number(args.get("wait_on_cuda_event_record_corr_id")),
        _number(args.get("correlation")),
        start,
    )


def _settle(trace: RankTrace, facts: Event) -> None:
    """What the file says of itself: its rank, its groups, where its clock begins."""
    info = _table(facts.get("distributedInfo"))
    said = _number(info.get("rank"))
    trace.rank = said if said >= 0 else _rank_in_name(trace.path)
    if trace.rank > MOST_RANK:
        raise InputError(
            f"{trace.path}: rank {trace.rank:.4g} is above {MOST_RANK:,}; less would do"
        )
    trace.world_size = max(_number(info.get("world_size")), 0)
    for group in map(_table, info.get("pg_config") or ()):
        ranks = group.get("ranks", ())
        ranks = re.findall(r"\d+", ranks) if isinstance(ranks, str) else ranks  # as dynolog writes
        trace.groups[str(group.get("pg_name"))] = tuple(int(r) for r in ranks)
    if base := int(facts.get("baseTimeNanoseconds") or 0):
        trace.operators.shift(base)
        for key in ("gpu", "calls", "syncs", "marks", "posted"):
            rows = getattr(trace, key)
            shifted = {"start": base, "end": base}
            for k, row in enumerate(rows):
                moved = {f: getattr(row, f) + by for f, by in shifted.items() if f in row._fields}
                rows[k] = row._replace(**moved)


def _rank_in_name(path: Path) -> int:
    """The rank that a file's name tells, 0 if it does not.

    >>> _rank_in_name(Path("rank-3.Apr_03.pt.trace.json.gz")), _rank_in_name(Path("kineto_7.json"))
    (3, 7)
    """
    found = re.search(r"(?:rank|worker)[-_]?(\d+)", path.name) or re.search(
        r"_(\d{1,5})\.(?:pt\.trace\.)?json", path.name
    )
    return int(found[1]) if found else 0


def nanoseconds(microseconds: Any) -> int:
    """Microseconds as written, int or Decimal, in whole nanoseconds.

    >>> nanoseconds(Decimal("1712195495519689.047")), nanoseconds(12)
    (1712195495519689047, 12000)
    """
    if isinstance(microseconds, int):
        return 1000 * microseconds
    return int((Decimal(microseconds) * 1000).to_integral_value())


def _number(of: Any) -> int:
    """An integer, or the one in a text such as "stream 7"; -1 where there is none."""
    if isinstance(of, int):
        return of
    found = re.search(r"-?\d+", str(of))
    return int(found[0]) if found else -1


def _stream(of: Any) -> int:
    """A stream; CUPTI's 2^32 - 1 means none."""
    stream = _number(of)
    return -1 if stream == 0xFFFFFFFF else stream
