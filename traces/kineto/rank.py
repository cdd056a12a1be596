"""Reads one rank's file into rows: what ran on the GPU, what the host called, what surrounds it."""

from __future__ import annotations

from pathlib import Path
from sys import intern

from schedules.input_error import InputError
from traces.checked import described
from traces.kernel_names import Rules, Sort, shipped
from traces.kineto import names
from traces.kineto.about import settle
from traces.kineto.events import Event, Source
from traces.kineto.fields import Wrong, get
from traces.kineto.message import message
from traces.kineto.rows import Annotation, GpuOp, Operators, Posted, RankRows, RuntimeCall, Sync
from traces.recording import Report

__all__ = [
    "Annotation",
    "GpuOp",
    "Operators",
    "Posted",
    "RankRows",
    "RuntimeCall",
    "Sync",
    "read",
]

MANY = 100_000
"""With more rows of a kind, equal ones are left out while more are read."""
OFTEN = 4096
"""The rows are counted after every so many events."""
_ROWS = ("gpu", "calls", "syncs", "marks")


def read(path: Path, report: Report, rules: Rules | None = None) -> RankRows:
    """Read one file; ``rules`` sort its kernels. Raises InputError if no event can be read."""
    rules = rules or shipped()
    source = Source(path, report)
    trace = RankRows(path)
    wrong, first, number = 0, "", -1
    copies = _Copies(trace)
    before: Event = {}
    for number, event in enumerate(source.events()):
        if event == before and event.get("ph") == "X":
            copies.lost += 1
            continue
        before = event if isinstance(event, dict) else {}
        try:
            _take(trace, event, rules)
        except Wrong as error:
            wrong, first = wrong + 1, first or f"in event {number}, {error}"
        if number % OFTEN == 0:
            copies.many()
    copies.left_out()
    trace.warnings += source.warnings
    if number < 0 or wrong == number + 1:
        raise InputError(f"{path} holds no event that can be read{first and f': {first}'}")
    if wrong:
        trace.warnings.append(
            f"{path.name}: {wrong:,} event{'s' * (wrong > 1)} left out, whose fields are not what "
            f"they should be: {first}"
        )
    trace.warnings += _unread(trace)
    settle(trace, source.facts)
    trace.gpu.sort(key=lambda op: (op.device, op.stream, op.start, op.end))
    for rows in (trace.calls, trace.marks, trace.posted):
        rows.sort(key=lambda row: (row.start, -row.end))
    return trace


def _unread(trace: RankRows) -> list[str]:
    """Say which categories of events are unknown; they may come from another kind of device."""
    if not trace.unread:
        return []
    most = sorted(trace.unread.items(), key=lambda item: (-item[1], item[0]))[:4]
    count = sum(trace.unread.values())
    named = ", ".join(f"{name[:40]!r} ({number:,})" for name, number in most)
    return [
        f"{trace.path.name}: {count:,} event{'s' * (count > 1)} of unknown categories left out: "
        f"{named}"
    ]


def _take(trace: RankRows, event: Event, rules: Rules) -> None:
    """Keep what is needed of an event. Raises Wrong for a field that is not of its type."""
    if not isinstance(event, dict):
        raise Wrong(f"it is {described(event)}, where a table would do")
    category = event.get("cat")
    if event.get("ph") != "X" or "ts" not in event or not isinstance(category, str):
        return
    what = names.category(category)
    if what is None:
        if category.lower() not in names.UNREAD:
            trace.unread[category] = trace.unread.get(category, 0) + 1
        return
    start, name, args = get(event, "ts"), intern(get(event, "name")), get(event, "args")
    end = start + get(event, "dur")
    if what in (names.KERNEL, names.COPY):
        sort = Sort("copy") if what == names.COPY else rules.of(name)
        trace.gpu.append(_gpu_op(event, sort, name, start, end, args))
        return
    thread = get(event, "tid")
    trace.processes.setdefault(thread, get(event, "pid"))
    if what in (names.OPERATOR, names.CALL) and not name.startswith("ProfilerStep"):
        trace.operators.add(name, thread, start, end)
    if what == names.CALL:
        if not names.SKIPPED.search(name):
            trace.calls.append(RuntimeCall(name, thread, start, end, get(args, "correlation")))
    elif what == names.SYNC:
        trace.syncs.append(_sync(name, args, start))
    elif name == "record_param_comms":
        trace.posted.append(Posted(thread, start, end, message(args)))
    elif what == names.MARK or name.startswith("ProfilerStep"):
        trace.marks.append(Annotation(name, thread, start, end))


def _gpu_op(event: Event, sort: Sort, name: str, start: int, end: int, args: Event) -> GpuOp:
    kind, said = sort.kind, args.get("kind")
    return GpuOp(
        name,
        said if said in names.KNOWN and kind != "communication" else kind,
        start,
        end,
        get(args, "device") if "device" in args else get(event, "pid"),
        get(args, "stream") if "stream" in args else get(event, "tid"),
        get(args, "correlation"),
        message(args) if "Collective name" in args else None,
        get(args, "grid") if kind == "communication" else 0,
        sort.dimension,
    )


def _sync(name: str, args: Event, start: int) -> Sync:
    return Sync(
        get(args, "cuda_sync_kind") or name,
        _stream(get(args, "stream")),
        _stream(get(args, "wait_on_stream")),
        get(args, "wait_on_cuda_event_record_corr_id"),
        get(args, "correlation"),
        start,
    )


def _stream(stream: int) -> int:
    """Return a stream; CUPTI's 2^32 - 1 means none, -1."""
    return -1 if stream == 0xFFFFFFFF else stream


class _Copies:
    """Leaves out events that a file holds more than once, before they fill the memory."""

    def __init__(self, trace: RankRows) -> None:
        self._trace, self.lost = trace, 0
        self._most = dict.fromkeys(_ROWS, MANY)
        self._most_operators = MANY

    def many(self) -> None:
        """Leave out equal rows of the kinds that have many rows."""
        for key, most in self._most.items():
            if len(getattr(self._trace, key)) > most:
                self._once(key)
        if len(self._trace.operators.start) > self._most_operators:
            self.lost += self._trace.operators.once()
            self._most_operators = max(MANY, 2 * len(self._trace.operators.start))

    def _once(self, key: str) -> None:
        rows = getattr(self._trace, key)
        was = len(rows)
        rows[:] = dict.fromkeys(rows)
        self.lost += was - len(rows) if key != "calls" else 0  # calls are operators too
        self._most[key] = max(MANY, 2 * len(rows))

    def left_out(self) -> None:
        """Leave out equal rows of the GPU, and others if there are many; warn how many."""
        self._once("gpu")
        if self.lost >= OFTEN:
            self.lost += self._trace.operators.once()
            for key in _ROWS[1:]:
                self._once(key)
        if self.lost:
            self._trace.warnings.append(
                f"{self._trace.path.name}: {self.lost:,} event{'s' * (self.lost > 1)} left out, "
                "as the file already has the same event"
            )
