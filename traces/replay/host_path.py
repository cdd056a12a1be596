"""The critical path of a recording, with the host's share told apart.

A simulated path has launches and lags. A recorded one runs through the host: through operators and
calls of the driver, through Python between them, about which a profiler says nothing, through
launches, and through calls that wait for the GPU, which take some time even when it is done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from sim.analysis.activity import HOST, activities
from sim.analysis.critical_path import walk
from sim.analysis.intervals import Covered, Intervals
from sim.analysis.path import causes
from sim.graph import Graph
from traces.kineto.names import SYNCHRONISES
from traces.recording import Recording
from traces.replay.lags import late

OPERATORS = "host operators"  # inside operators and calls of the driver
PYTHON = "host other"  # between operators: Python, about which the file says nothing
LAUNCH = "launch"  # from a launching call's begin to the begin of what it launches
SYNC = "sync"  # in calls that wait for the GPU, when there is nothing left to wait for
GAP = "gap"  # between two ops of the GPU that follow on each other
LATE = "late start"  # a launch or gap that is much longer than others alike


class HostPath(NamedTuple):
    """Seconds of the critical path by cause, most first, and what they sum to."""

    seconds: Mapping[str, float]
    span: float
    """Seconds from the first instant that the recording has on the path's threads to the last."""

    @property
    def length(self) -> float:
        """What HolisticTraceAnalysis calls the length: Python and waits do not count."""
        return math.fsum(s for name, s in self.seconds.items() if name not in (PYTHON, SYNC))

    def grouped(self) -> dict[str, float]:
        """Return host, compute, communication, copy, gap and launch, in seconds."""
        out: defaultdict[str, list[float]] = defaultdict(list)
        for name, seconds in self.seconds.items():
            out["host" if name == OPERATORS else name.split(" ")[0]].append(seconds)
        return {name: math.fsum(of) for name, of in out.items()}


def host_path(recording: Recording) -> HostPath:
    """Walk back from the last instant, on the GPU or inside an operator, to the first one."""
    shares: defaultdict[str, list[float]] = defaultdict(list)
    low, high = np.inf, -np.inf
    for cause, start, end in _pieces(recording):
        low, high = min(low, start), max(high, end)
        if start < end:
            shares[cause].append(end - start)
    sums = {cause: math.fsum(of) for cause, of in shares.items()}
    order = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return HostPath(dict(order), max(high - low, 0.0))


def _pieces(recording: Recording) -> Iterator[tuple[str, float, float]]:
    """Yield (cause, from, until) of every piece of the path."""
    timeline, graph = recording.timeline, recording.timeline.graph
    if not len(graph):
        return
    kinds, of_work = activities(graph), causes(graph)
    host = kinds.code == kinds.names.index(HOST)
    last, delayed = _last(recording, host), late(timeline)
    covered = {key: Covered(of) for key, of in recording.operators.items()}
    after = -1  # the op of the path after this one
    for op, ends, before in walk(timeline, last):
        start, end = float(timeline.start[op]), float(timeline.end[ends])
        ready = float(timeline.end[before]) if before >= 0 else start
        launched = after >= 0 and not host[after]
        if not host[op]:
            yield of_work[graph.work[op]], start, end
            cause = LAUNCH if before >= 0 and host[before] else GAP
            yield LATE if delayed[op] else cause, ready, start
        else:
            returned = before >= 0 and not host[before]
            mine = covered.get(_thread(graph, op))
            if after < 0:
                yield from _on_host(mine, end, _until(recording, op, end))
            if launched:
                yield LAUNCH, start, end
            elif returned or _synchronises(graph.names[graph.name[op]]):
                yield SYNC, start, end
            else:
                yield from _on_host(mine, start, end)
            if returned:
                yield SYNC, ready, start
            elif before >= 0:
                yield from _on_host(mine, ready, start)
            else:
                yield from _on_host(mine, _since(recording, op, start), start)
        after = op


def _synchronises(name: str) -> bool:
    return bool(SYNCHRONISES.match(name)) or name.endswith("(wait)")


def _last(recording: Recording, host: np.ndarray) -> int:
    """Return the op to walk back from: the last to end, or one whose thread is busy for longer."""
    timeline, graph = recording.timeline, recording.timeline.graph
    last = int(np.argmax(timeline.end))
    latest = float(timeline.end[last])
    for (rank, stream), of in recording.operators.items():
        if stream in graph.streams and len(of.end) and of.end[-1] > latest:
            mine = (graph.rank == rank) & (graph.stream == graph.streams.index(stream)) & host
            if mine.any():
                ops = np.flatnonzero(mine)
                last, latest = int(ops[np.argmax(timeline.end[ops])]), float(of.end[-1])
    return last


def _thread(graph: Graph, op: int) -> tuple[int, str]:
    return int(graph.rank[op]), graph.streams[graph.stream[op]]


def _operators(recording: Recording, op: int) -> Intervals:
    key = _thread(recording.timeline.graph, op)
    return recording.operators.get(key, Intervals(np.empty(0), np.empty(0)))


def _since(recording: Recording, op: int, start: float) -> float:
    of = _operators(recording, op)
    return min(float(of.start[0]), start) if len(of.start) else start


def _until(recording: Recording, op: int, end: float) -> float:
    of = _operators(recording, op)
    return max(float(of.end[-1]), end) if len(of.end) else end


def _on_host(
    thread: Covered | None, start: float, end: float
) -> Iterator[tuple[str, float, float]]:
    """Cut a stretch of a thread into operators and the rest, laid one after the other."""
    inside = min(thread.until(end) - thread.until(start), end - start) if thread else 0.0
    yield OPERATORS, start, start + inside
    yield PYTHON, start + inside, end
