"""Repairs rows of a profiler that cannot be true; each kind is counted and warned about.

- Times outside of the profiler's window are left out: CUPTI leaves 0 where it was told no time.
- Durations below 0 are set to 0.
- Durations that overrun the next op of the stream, which runs one op after another, are cut there.
  Some microseconds are allowed: programmatic dependent launch begins a kernel in the tail of
  another.
- Durations that overrun the end of everything else are cut there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from sim import units
from sim.graph import Longs
from traces.kineto.rows import GpuOp, RankRows

LAUNCH_OVERLAP = 20_000
"""An op may begin so many nanoseconds before the one before it on its stream has ended."""
HOUR = 3_600 * 10**9
"""No profiler runs for so many nanoseconds without an event."""
LONG = 10**9  # the host's rows may outlast everything else by so many nanoseconds
SHARE = 0.1  # if more of a stream's ops overlap, it does not run one op at a time
DEEP = 64  # nor is it cut if more ops run on it at one time
LIKE = 3  # so many ops of a name tell how long one takes
MANY_TIMES = 100  # so many times the longest of them is no real duration
_HOST = ("calls", "marks", "posted")


def sound(trace: RankRows) -> RankRows:
    """Return the trace with its impossible times repaired, and a warning for each kind of them."""
    said: list[str] = []
    for step in (_not_negative, _inside, _serial, _ended):
        trace = step(trace, said)
    said = [f"{trace.path.name}: {sentence}" for sentence in said]
    return replace(trace, warnings=[*trace.warnings, *said])


def _not_negative(trace: RankRows, said: list[str]) -> RankRows:
    """Set durations below 0 to 0."""
    start, end = trace.operators.spans()
    wrong = int((end < start).sum())
    wrong += sum(row.end < row.start for rows in (trace.gpu, trace.marks) for row in rows)
    if not wrong:
        return trace
    changed: dict[str, Any] = {
        key: [row._replace(end=max(row.start, row.end)) for row in getattr(trace, key)]
        for key in ("gpu", *_HOST)
    }
    said.append(f"{_events(wrong)} with a duration below 0 taken to last no time")
    return replace(trace, **changed, operators=trace.operators.ending(np.maximum(start, end)))


def _inside(trace: RankRows, said: list[str]) -> RankRows:
    """Return the rows that lie in the profiler's window."""
    start, _ = trace.operators.spans()
    host = np.concatenate([start, *(_times(trace, key)[0] for key in _HOST)])
    gpu, end = _times(trace, "gpu")
    low, high = _window(host if len(host) else gpu)
    before, after = (high - low, max(high - low, HOUR)) if len(host) else (0, 0)
    there = (end >= low - before) & (gpu <= high + after)
    changed: dict[str, Any] = {}
    if lost := len(there) - int(there.sum()):
        first = trace.gpu[int(np.argmin(there))].name
        changed["gpu"] = [op for op, keep in zip(trace.gpu, there, strict=True) if keep]
        said.append(
            f"{lost:,} GPU op{'s' * (lost > 1)} with no time left out, outside of the profiler's "
            f"window (first: {first:.60})"
        )
    once = np.concatenate([start, _times(trace, "marks")[0]])  # calls and posts are operators too
    if far := int(((once < low) | (once > high)).sum()):
        said.append(f"{_events(far)} of the host left out, outside of the profiler's window")
        for key in _HOST:
            changed[key] = [row for row in getattr(trace, key) if low <= row.start <= high]
        changed["operators"] = trace.operators.chosen((start >= low) & (start <= high))
    return replace(trace, **changed)


def _window(starts: Longs) -> tuple[int, int]:
    """Return first and last of the most begins without an hour between two; 0, 0 if none."""
    if not len(starts):
        return 0, 0
    order = np.sort(starts)
    parts = np.split(order, np.flatnonzero(np.diff(order) > HOUR) + 1)
    most = max(parts, key=len)
    return int(most[0]), int(most[-1])


def _serial(trace: RankRows, said: list[str]) -> RankRows:
    """Cut ops of a stream where the next one begins, if they overrun it by more than a launch."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, op in enumerate(trace.gpu):
        rows[op.device, op.stream].append(k)
    gpu = [*trace.gpu]
    cut: list[tuple[int, int]] = []  # nanoseconds too many, row
    for (_, stream), mine in rows.items():
        over = [*_overruns(gpu, mine)]
        if len(over) > SHARE * len(mine) and len(mine) > 1 / SHARE and _depth(gpu, mine) <= DEEP:
            said.append(
                f"stream {stream}: {len(over):,} of {len(mine):,} ops run beside the next, so it "
                "is not cut; they are on tracks of it"
            )
            continue
        for k, begins in over:
            cut.append((gpu[k].end - begins, k))
            gpu[k] = gpu[k]._replace(end=begins)
    if cut:
        longest, k = max(cut)
        said.append(
            f"{len(cut):,} GPU op{'s' * (len(cut) > 1)} cut where the next one of the stream "
            f"begins (the longest: {trace.gpu[k].name:.60}, by {units.seconds(longest / 1e9)})"
        )
    return replace(trace, gpu=gpu)


def _overruns(gpu: Sequence[GpuOp], rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ops that overrun the next one of their stream, and where that begins.

    Kernels of one launch of a graph may run beside each other.
    """
    for k, after in pairwise(rows):
        one, two = gpu[k], gpu[after]
        if one.end > two.start + LAUNCH_OVERLAP and not one.correlation == two.correlation > 0:
            yield k, two.start


def _depth(gpu: Sequence[GpuOp], rows: Sequence[int]) -> int:
    """Return the largest number of ops that run at one time."""
    starts, ends = (np.sort([getattr(gpu[k], side) for k in rows]) for side in ("start", "end"))
    running = np.arange(1, len(rows) + 1) - np.searchsorted(ends, starts, "right")
    return int(running.max(initial=0))


def _ended(trace: RankRows, said: list[str]) -> RankRows:
    """Cut durations that overrun the end of everything else: to that of ops alike, or there."""
    gpu, wrong = _like(trace)
    trace = replace(trace, gpu=gpu)
    start, end = trace.operators.spans()
    begins = [start, _times(trace, "gpu")[1], *(_times(trace, key)[0] for key in _HOST)]
    last = max((int(of.max()) for of in begins if len(of)), default=0)
    first = min((int(of.min()) for of in begins if len(of)), default=0)
    latest = last + max(last - first, LONG)
    changed: dict[str, Any] = {}
    for key in _HOST:
        rows = getattr(trace, key)
        if any(row.end > latest for row in rows):
            wrong += sum(row.end > latest for row in rows if key == "marks")
            changed[key] = [row._replace(end=min(row.end, last)) for row in rows]
    if (end > latest).any():
        wrong += int((end > latest).sum())
        changed["operators"] = trace.operators.ending(np.where(end > latest, last, end))
    if wrong:
        said.append(f"{_events(wrong)} cut that outlast everything else")
    return replace(trace, **changed)


def _like(trace: RankRows) -> tuple[list[GpuOp], int]:
    """Shorten GPU ops that end long after all others and take 100 times as long as ops alike.

    They then last as long as the median of those. Returns the ops, and how many were shortened.
    """
    starts, ends = _times(trace, "gpu")
    if not len(starts):
        return [*trace.gpu], 0
    last, first = int(starts.max()), int(starts.min())
    out, wrong = [*trace.gpu], 0
    for k in np.flatnonzero(ends > last + max(last - first, 1)).tolist():
        op = trace.gpu[k]
        like = [o.end - o.start for o in trace.gpu if o.name == op.name and o is not op]
        if len(like) >= LIKE and op.end - op.start > MANY_TIMES * max(like):
            out[k] = op._replace(end=op.start + int(np.median(like)))
            wrong += 1
    return out, wrong


def _times(trace: RankRows, key: str) -> tuple[Longs, Longs]:
    """Return begins and ends of a kind of rows, nanoseconds."""
    rows = getattr(trace, key)
    return np.array([row.start for row in rows], np.int64), np.array(
        [r.end for r in rows], np.int64
    )


def _events(number: int) -> str:
    return f"{number:,} event{'s' * (number != 1)}"
