"""Writes what the host does around the kernels of one rank, as PyTorch's profiler records it.

Every op has a launch. If it waits for an op on another stream, there is a cudaEventRecord after
that op's launch and a cudaStreamWaitEvent before its own, with the ``cuda_sync`` event that names
both. Each message has its ``record_param_comms``. Everything is in the order of the program. A host
that is not simulated takes no time: it launches everything, a nanosecond apart, when the step
begins, or when the op begins if that is sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sim.analysis.activity import HOST, activity
from sim.graph import Floats, Host, Longs
from sim.timeline import Timeline
from traces.chrome import Event

GPU, CPU = 0, 1  # process ids
TICK = 1e-3  # us: the profiler's clock


def slice_of(category: str, name: str, pid: int, tid: int, ts: float, dur: float) -> Event:
    """Return a complete event; times are microseconds."""
    where = {"pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": category, "name": name, **where}


class Calls:
    """The calls of one rank's host; an op is known by its row among those that are written."""

    def __init__(
        self, timeline: Timeline, ops: Longs, begin: Longs, streams: dict[int, int]
    ) -> None:
        graph = timeline.graph
        self._graph, self._ops, self._streams = graph, ops, streams
        kinds = np.array([activity(work) == HOST for work in graph.works], bool)
        self.is_host = kinds[graph.work[ops]]
        self._row = {i: k for k, i in enumerate(ops.tolist())}
        self._needs = [self._on_others(k) for k in range(len(ops))]
        self._awaited = {on for needs in self._needs for on in needs}
        zero = timeline.start.min(initial=np.inf)
        self._start, self._end = (
            np.round((of[ops] - zero) * 1e6, 3) for of in (timeline.start, timeline.end)
        )
        self.at, self.takes = self._launches(begin)
        self._number = 2 * len(ops)  # of the last correlation

    def _on_others(self, k: int) -> list[int]:
        """Return what an op waits for that was written too and is on another stream."""
        graph, i = self._graph, self._ops[k]
        rows = [self._row[on] for on in graph.waits(i).tolist() if on in self._row]
        return [on for on in rows if graph.stream[self._ops[on]] != graph.stream[i]]

    def _launches(self, begin: Longs) -> tuple[Floats, Floats]:
        """Return when each op is launched, and how long that takes; (ops,) in microseconds."""
        calls = np.array([3 + len(needs) for needs in self._needs], np.int64)
        at = np.minimum(TICK * (np.cumsum(calls) - 2), begin).astype(np.float64)
        takes = np.zeros(len(at))
        for k, needs in enumerate(self._needs):
            for on in (on for on in needs if self.is_host[on] and not self.is_host[k]):
                works = isinstance(self._graph.works[self._graph.work[self._ops[on]]], Host)
                at[k] = self._end[on] if works else self._start[on]
                takes[k] = 0.0 if works else self._end[on] - self._start[on]
        return at.round(3), takes.round(3)

    def before(self, k: int, messages: Sequence[Event]) -> Iterator[Event]:
        """Yield what comes before the launch of an op: its waits, and what its messages are."""
        needs = [on for on in self._needs[k] if not self.is_host[on]]
        for n, on in enumerate(needs, 1):
            yield from self._wait(k, on, self._ticks(k, -1 - n))
        for args in messages:
            at = self._ticks(k, -1)
            yield slice_of("cpu_op", "record_param_comms", CPU, 1, at, 0) | {"args": args}

    def launch(self, k: int, name: str) -> Iterator[Event]:
        """Yield the launch of an op and, if others wait for the op, its event."""
        link = {"correlation": k + 1, "External id": k + 1}
        at = float(self.at[k])
        yield slice_of("cuda_runtime", name, CPU, 1, at, float(self.takes[k])) | {"args": link}
        if k in self._awaited:
            link = {"correlation": len(self._ops) + k + 1}
            event = slice_of("cuda_runtime", "cudaEventRecord", CPU, 1, self._ticks(k, 1), 0)
            yield event | {"args": link}

    def host(self, k: int) -> Iterator[Event]:
        """Yield the calls in which the host waits for the GPU before an op of its own."""
        for on in self._needs[k]:
            if not self.is_host[on]:
                yield from self._synchronise(k, on)

    def _ticks(self, k: int, ticks: int) -> float:
        return max(round(float(self.at[k]) + TICK * ticks, 3), 0.0)

    def _stream(self, k: int) -> int:
        return self._streams[int(self._graph.stream[self._ops[k]])]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _wait(self, k: int, on: int, at: float) -> Iterator[Event]:
        """Yield a cudaStreamWaitEvent: the stream of ``k`` waits for ``on``."""
        number, stream = self._next(), self._stream(k)
        link = {"correlation": number, "External id": number}
        yield slice_of("cuda_runtime", "cudaStreamWaitEvent", CPU, 1, at, 0) | {"args": link}
        said = {
            "cuda_sync_kind": "Stream Wait Event",
            "wait_on_stream": self._stream(on),
            "wait_on_cuda_event_record_corr_id": len(self._ops) + on + 1,
            "wait_on_cuda_event_id": on + 1,
            "stream": stream,
            "device": 0,
            "context": 1,
        }
        event = slice_of("cuda_sync", "Stream Wait Event", GPU, stream, at, 0)
        yield event | {"args": {**link, **said}}

    def _synchronise(self, k: int, on: int) -> Iterator[Event]:
        """Yield a cudaStreamSynchronize from the launch of ``on`` until ``k``."""
        number, stream = self._next(), self._stream(on)
        link = {"correlation": number, "External id": number}
        at = self._ticks(on, 2)
        took = max(round(float(self._start[k]) - at, 3), 0.0)
        event = slice_of("cuda_runtime", "cudaStreamSynchronize", CPU, 1, at, took)
        yield event | {"args": link}
        said = {"cuda_sync_kind": "Stream Sync", "stream": stream, "device": 0, "context": 1}
        event = slice_of("cuda_sync", "Stream Sync", GPU, stream, at, took)
        yield event | {"args": {**link, **said}}
