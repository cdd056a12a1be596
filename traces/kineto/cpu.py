"""Reads runs without a GPU: operators of the CPU compute, and gloo's collectives communicate.

Nothing is launched. A collective is taken to wait for the operator that ended last before it, and
an operator for the collectives that ended while its thread stood still just before it. The time
that a thread waits inside operators (:mod:`~traces.kineto.cpu_waits`) is cut out of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from sim.analysis.intervals import Intervals, complement, union
from sim.graph import Longs
from traces.kernel_names import COMMUNICATION, COMPUTE, shipped
from traces.kineto import cpu_waits
from traces.kineto.message import COLLECTIVES, CommunicationRecord
from traces.kineto.rank import GpuOp, RankRows

GLOO = 0  # stream of the collectives; threads that compute are 1, 2, ..., the busiest first
_MARK = "gloo:"
_GEMM = re.compile(r"::(linear|addmm|mm|bmm|baddbmm|matmul)$|(Addmm|Mm|Bmm|Linear)Backward")

Row = tuple[str, int, int]  # name, start, end in nanoseconds


def on_cpu(trace: RankRows) -> bool:
    """Take operators and gloo's collectives as ops, if a trace has no GPU ops.

    Returns whether it has none.
    """
    if trace.gpu or trace.calls or not len(trace.operators.start):
        return False
    ops = [*_collectives(trace)]
    for stream, rows in enumerate(_computing(trace), GLOO + 1):
        ops += [_op(name, start, end, stream) for name, start, end in rows]
    trace.gpu = sorted(ops, key=lambda op: (op.device, op.stream, op.start, op.end))
    return True


def _op(
    name: str, start: int, end: int, stream: int, of: CommunicationRecord | None = None
) -> GpuOp:
    kind = "gemm" if _GEMM.search(name) else shipped().of(name).kind
    if kind == COMMUNICATION:  # an operator that calls for one
        kind = COMPUTE
    return GpuOp(name, COMMUNICATION if of else kind, start, end, 0, stream, -1, of)


def _collectives(trace: RankRows) -> Iterator[GpuOp]:
    group = next(iter(trace.groups), "")
    ranks = trace.groups.get(group) or tuple(range(trace.world_size))
    for mark in trace.marks:
        if mark.name.startswith(_MARK):
            called = mark.name.removeprefix(_MARK)
            collective = COLLECTIVES.get(called, called)
            ends = _ends(trace.rank, ranks, collective)
            message = CommunicationRecord(collective, group, "", ranks, len(ranks), -1, *ends, -1)
            yield _op(mark.name, mark.start, mark.end, GLOO, message)


def _ends(rank: int, ranks: tuple[int, ...], collective: str) -> tuple[int, int]:
    """Return sender and receiver, which only a group of two tells; else -1, -1."""
    if collective not in ("send", "recv") or len(ranks) != 2:
        return -1, -1
    other = next((r for r in ranks if r != rank), -1)
    return (rank, other) if collective == "send" else (other, rank)


def _computing(trace: RankRows) -> list[list[Row]]:
    """Return, per thread but gloo's, its outermost operators less their waits."""
    of = trace.operators
    columns = [np.array(column, np.int64) for column in (of.thread, of.start, of.end, of.name)]
    thread, start, end, name = columns
    called = [*of.names]
    idle = np.array([bool(cpu_waits.COLLECTIVE.search(one)) for one in called], bool)[name]
    threads, sizes = np.unique(thread, return_counts=True)
    main = int(threads[sizes.argmax()])
    marks = [mark for mark in trace.marks if mark.name.startswith(_MARK)]
    gloo = {mark.thread for mark in marks} - {main}
    spans = np.array([(mark.start, mark.end) for mark in marks], np.int64).reshape(-1, 2)
    out = []
    for one in [t for t in threads[np.argsort(-sizes, kind="stable")].tolist() if t not in gloo]:
        mine = thread == one
        waits = _waits(start[mine], end[mine], [called[k] for k in name[mine]], spans)
        waits = union(
            np.append(waits.start, start[mine & idle]), np.append(waits.end, end[mine & idle])
        )
        rows = np.flatnonzero(mine & ~idle & (end > start))
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        found: list[Row] = []
        until = -1
        for k in rows.tolist():
            if start[k] >= until:
                until = int(end[k])
                found += _less(called[name[k]], int(start[k]), until, waits)
        out.append(found)
    return out


def _waits(start: Longs, end: Longs, called: Sequence[str], spans: Longs) -> Intervals:
    """Return when a thread with these operators waits for collectives with these spans."""
    order = np.argsort(spans[:, 1], kind="stable")
    of = cpu_waits.pieces(start, end, int(start.min()), int(end.max()))
    return cpu_waits.waiting(of, called, spans[order, 0], spans[order, 1])


def _less(name: str, start: int, end: int, waits: Intervals) -> Iterator[Row]:
    """Yield the pieces of an operator outside of waits."""
    inside = (waits.end > start) & (waits.start < end)
    left = complement(Intervals(waits.start[inside], waits.end[inside]), start, end)
    for a, b in zip(left.start.tolist(), left.end.tolist(), strict=True):
        yield name, int(a), int(b)


def edges(trace: RankRows) -> list[tuple[int, int]]:
    """Return (later, earlier): rows of ``trace.gpu`` that wait for each other."""
    gloo = [k for k, op in enumerate(trace.gpu) if op.stream == GLOO]
    done = sorted(gloo, key=lambda k: trace.gpu[k].end)
    ends = [trace.gpu[k].end for k in done]
    computes = [k for k, op in enumerate(trace.gpu) if op.stream != GLOO]
    over = sorted(computes, key=lambda k: trace.gpu[k].end)
    over_at = [trace.gpu[k].end for k in over]
    out = []
    for k in gloo:
        before = bisect_right(over_at, trace.gpu[k].start)
        if before:
            out.append((k, over[before - 1]))
    for k in computes:
        first = k > 0 and trace.gpu[k - 1].stream == trace.gpu[k].stream
        since = trace.gpu[k - 1].end if first else -1
        low, high = bisect_right(ends, since), bisect_right(ends, trace.gpu[k].start)
        out += [(k, one) for one in done[low:high]]
    return out
