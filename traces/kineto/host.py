"""The host's ops: calls that launch something on the GPU, and calls that wait for the GPU.

A launch is over when its kernel starts, or before: what a call does after that delays only the
host. A call that waits begins here when what it waits for has ended. So the time in which the host
stands still is not its own work, and it shrinks when the GPU gets faster. A call that returns only
when what it launches has begun, or is done, becomes two ops: a launch and a wait after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import NamedTuple

from traces.kineto import names
from traces.kineto.awaited import Awaited
from traces.kineto.launch_queue import LaunchQueue
from traces.kineto.rank import RankRows, RuntimeCall
from traces.kineto.waits import TOLERANCE, Edge, Launched


class HostOp(NamedTuple):
    """One op of a host thread, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int
    on: tuple[int, ...]  # GPU ops (rows of ``trace.gpu``) that must have ended
    launches: tuple[int, ...]  # GPU ops that it launches
    begun: int  # when the host made the call, before any wait


def host_ops(
    trace: RankRows, launch: Sequence[int], launched: Launched, edges: Sequence[Edge]
) -> list[HostOp]:
    """Return the launching and waiting calls of all threads by start; a thread's do not overlap."""
    ops: dict[int, list[int]] = defaultdict(list)
    for op, row in enumerate(launch):
        if row >= 0:
            ops[row].append(op)
    needs: dict[int, list[int]] = defaultdict(list)
    for later, earlier in edges:
        needs[later].append(earlier)
    awaited = Awaited(trace, launch, launched)
    issue, queue = _issue(trace, ops), LaunchQueue(trace, ops)
    out: list[HostOp] = []
    for row, call in enumerate(trace.calls):
        if row in ops:
            before = [awaited.before(ops[row][0]), *needs[ops[row][0]]]
            longer = call.end - call.start > 2 * issue
            let = queue.awaited(call, ops[row][0]) if longer else -1
            if let >= 0:
                out.append(_queued(trace, call, let, issue))
            at = max(call.start, out[-1].end) if let >= 0 else call.start
            out += _launch(trace, call, ops[row], before, issue, at)
            awaited.launch(call, ops[row])
        elif names.RECORDS.match(call.name):
            awaited.record(call)
        elif names.SYNCHRONISES.match(call.name):
            out.append(_sync(trace, call.name, call, call.start, awaited.of(call)))
        elif names.FREES.match(call.name):
            on = [op for op in awaited.device(call) if trace.gpu[op].end > call.start]
            out += [_sync(trace, call.name, call, call.start, on)] if on else []
    return _apart(out)


def _issue(trace: RankRows, ops: dict[int, list[int]]) -> int:
    """Return the nanoseconds that a launch takes.

    It is the median of the calls that are over before what they launch begins.
    """
    took = [
        trace.calls[row].end - trace.calls[row].start
        for row, launched in ops.items()
        if trace.calls[row].end < trace.gpu[launched[0]].start
    ]
    return median_low(took) if took else 0


def _launch(
    trace: RankRows,
    call: RuntimeCall,
    ops: Sequence[int],
    before: Sequence[int],
    issue: int,
    at: int,
) -> Iterator[HostOp]:
    """Yield a launch and, for a call that returns only when the GPU has got that far, its wait.

    It begins ``at``, when its stream has a place for it. ``before`` is what the first of ``ops``
    waits for on the GPU. If that still ran, the time of the launch itself cannot be seen; it is
    taken to be that of other launches.
    """
    begun, done = min(trace.gpu[op].start for op in ops), max(trace.gpu[op].end for op in ops)
    until = max((trace.gpu[op].end for op in before if op >= 0), default=at)
    copies = bool(names.COPIES.search(call.name))
    waits_for_all = call.end >= done and (copies or done - begun > issue)
    waits_for_some = copies and call.end >= begun and until > at
    issued = max(min(call.end, begun), at)
    if (waits_for_all or waits_for_some) and until > at:
        issued = min(issued, at + issue)
    yield HostOp(call.name, call.thread, at, issued, (), tuple(ops), call.start)
    if waits_for_all or waits_for_some:
        on = ops if waits_for_all else [op for op in before if op >= 0]
        yield _sync(trace, f"{call.name} (wait)", call, issued, on)


def _queued(trace: RankRows, call: RuntimeCall, on: int, issue: int) -> HostOp:
    """Return the wait of a launch for a place in its stream; then it takes as long as others."""
    done = min(max(trace.gpu[on].end, call.start), call.end)
    end = max(done, call.end - issue)
    return HostOp(f"{call.name} (wait)", call.thread, done, end, (on,), (), call.start)


def _sync(trace: RankRows, name: str, call: RuntimeCall, start: int, on: Sequence[int]) -> HostOp:
    on = tuple(op for op in on if op >= 0 and trace.gpu[op].end <= call.end + TOLERANCE)
    done = max((trace.gpu[op].end for op in on), default=start)
    return HostOp(name, call.thread, min(max(start, done), call.end), call.end, on, (), start)


def _apart(ops: list[HostOp]) -> list[HostOp]:
    """Cut the ops of a thread where the next one begins, as runtimes call drivers inside."""
    ops.sort(key=lambda op: (op.start, op.end))
    following: dict[int, int] = {}
    for k in range(len(ops) - 1, -1, -1):
        op = ops[k]
        ops[k] = op._replace(end=min(op.end, following.get(op.thread, op.end)))
        following[op.thread] = op.start
    return ops
