"""The host's ops: calls that launch something on the GPU, and calls that wait for the GPU.

A launch counts as over when its kernel starts, if not before: what a call does after that keeps
only the host. A call that waits begins, here, when what it waits for has ended; so the time that
the host stands still is no work of its own and shrinks when the GPU gets faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from traces.kineto import names
from traces.kineto.rank import Call, RankTrace, Sync
from traces.kineto.waits import TOLERANCE, Launched


class HostOp(NamedTuple):
    """One op of a host thread, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int
    on: tuple[int, ...]  # GPU ops (rows of ``trace.gpu``) that must have ended
    launches: tuple[int, ...]  # GPU ops that it launches
    begun: int  # when the host called it, before it waited


def host_ops(trace: RankTrace, launch: Sequence[int], launched: Launched) -> list[HostOp]:
    """Launching and waiting calls of all threads by start; those of one thread do not overlap."""
    ops: dict[int, list[int]] = defaultdict(list)
    for op, row in enumerate(launch):
        if row >= 0:
            ops[row].append(op)
    told = {sync.correlation: sync for sync in trace.syncs if sync.stream < 0 or _is_host(sync)}
    last: dict[int, int] = {}  # thread -> what it launched last
    recorded: dict[int, int] = {}  # thread -> and when it last recorded an event
    out: list[HostOp] = []
    for row, call in enumerate(trace.calls):
        if row in ops:
            out += _launch(trace, call, ops[row])
            last[call.thread] = ops[row][-1]
        elif names.RECORDS.match(call.name):
            recorded[call.thread] = last.get(call.thread, -1)
        elif names.SYNCHRONISES.match(call.name):
            on = _awaited(trace, call, told.get(call.correlation), launched, last, recorded)
            out.append(_sync(trace, call.name, call.thread, call.start, call.end, on))
    return _apart(out)


def _is_host(sync: Sync) -> bool:
    return sync.kind != "Stream Wait Event"


def _launch(trace: RankTrace, call: Call, ops: list[int]) -> list[HostOp]:
    """A launch, and behind it the wait of a copy that comes back when it is done (pageable)."""
    begun = min(trace.gpu[op].start for op in ops)
    done = max(trace.gpu[op].end for op in ops)
    issued = max(min(call.end, begun), call.start)
    out = [HostOp(call.name, call.thread, call.start, issued, (), tuple(ops), call.start)]
    if "Memcpy" in call.name and call.end >= done:
        name = f"{call.name} (wait)"
        out.append(_sync(trace, name, call.thread, issued, call.end, tuple(ops)))
    return out


def _sync(
    trace: RankTrace, name: str, thread: int, start: int, end: int, on: tuple[int, ...]
) -> HostOp:
    on = tuple(op for op in on if op >= 0 and trace.gpu[op].end <= end + TOLERANCE)
    done = max((trace.gpu[op].end for op in on), default=start)
    return HostOp(name, thread, min(max(start, done), end), end, on, (), start)


def _awaited(
    trace: RankTrace,
    call: Call,
    told: Sync | None,
    launched: Launched,
    last: dict[int, int],
    recorded: dict[int, int],
) -> tuple[int, ...]:
    """The GPU ops that a synchronising call waits for; those still running after it are no such."""
    if told is not None and told.kind == "Stream Sync":
        streams = [(d, s) for d, s in launched.streams if s == told.stream]
    elif told is not None and told.kind == "Event Sync" and told.on_stream >= 0:
        begun = launched.called.get(told.on_call, call.start)
        streams = [(d, s) for d, s in launched.streams if s == told.on_stream]
        return tuple(launched.last(stream, begun) for stream in streams)
    elif "Event" in call.name:
        return (recorded.get(call.thread, -1),)
    elif "Stream" in call.name:
        op = last.get(call.thread, -1)
        streams = [(trace.gpu[op].device, trace.gpu[op].stream)] if op >= 0 else []
    else:
        streams = launched.streams
    return tuple(launched.last(stream, call.start) for stream in streams)


def _apart(ops: list[HostOp]) -> list[HostOp]:
    """Ops of one thread cut where the next begins: drivers are called from inside runtimes."""
    ops.sort(key=lambda op: (op.start, op.end))
    following: dict[int, int] = {}
    for k in range(len(ops) - 1, -1, -1):
        op = ops[k]
        ops[k] = op._replace(end=min(op.end, following.get(op.thread, op.end)))
        following[op.thread] = op.start
    return ops
