"""Finds which GPU op waits for which on another stream: recorded by ``cuda_sync``, or inferred.

Without ``cuda_sync`` a cudaStreamWaitEvent names neither stream nor event. Then, on each thread:

- it waits for what that thread had launched last when it last called cudaEventRecord, and the op
  that waits is the one that the thread launches next on another stream;
- inside a collective, its kernel waits for the op that was launched last on a stream that computes;
  events after the launch belong to NCCL and the watchdog;
- ``work.wait()`` makes the next op that computes wait for the collective: the one with the same
  sequence number, or else the oldest that nothing has waited for. PyTorch 1.12 shows no
  cudaEventRecord; then every cudaStreamWaitEvent outside of a collective is such a wait.

An edge that the recorded times contradict is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence

from traces.kineto import names
from traces.kineto.link import Enclosing
from traces.kineto.message import CommunicationRecord
from traces.kineto.rank import Posted, RankRows, RuntimeCall, Sync
from traces.kineto.unwaited import Unwaited

TOLERANCE = 2_000
"""An op may start so many nanoseconds before what it waited for ended: clocks in whole us."""

Stream = tuple[int, int]  # device and stream
Edge = tuple[int, int]  # (later, earlier): rows of ``trace.gpu``


class Launched:
    """The GPU ops of each stream in launch order, to find the last one before an instant."""

    def __init__(self, trace: RankRows, launch: Sequence[int]) -> None:
        rows: dict[Stream, list[tuple[int, int]]] = defaultdict(list)
        for op, row in enumerate(launch):
            if row >= 0:
                of = trace.gpu[op]
                rows[of.device, of.stream].append((trace.calls[row].start, op))
        self._rows = {stream: sorted(of) for stream, of in rows.items()}
        self._times = {stream: [at for at, _ in of] for stream, of in self._rows.items()}
        self.streams = sorted(self._rows)
        # when each correlation was first called
        self.called = {c.correlation: c.start for c in reversed(trace.calls) if c.correlation > 0}

    def last(self, stream: Stream, before: int) -> int:
        """Return the op launched last on a stream at or before an instant; -1 if none was."""
        k = bisect_right(self._times.get(stream, []), before)
        return self._rows[stream][k - 1][1] if k else -1

    def next(self, stream: Stream, after: int) -> int:
        """Return the op launched first on a stream after an instant; -1 if none is."""
        k = bisect_right(self._times.get(stream, []), after)
        return self._rows[stream][k][1] if k < len(self._rows.get(stream, [])) else -1


def waits(
    trace: RankRows,
    launch: Sequence[int],
    messages: Sequence[tuple[CommunicationRecord, ...]],
    launched: Launched,
) -> list[Edge]:
    """Return all waits between streams that the recorded times allow, once each."""
    told = [sync for sync in trace.syncs if sync.kind == "Stream Wait Event"]
    edges = _told(told, launched) if trace.syncs else _inferred(trace, launch, messages)
    out = {
        (later, earlier): None
        for later, earlier in edges
        if later >= 0 and earlier >= 0 and _possible(trace, later, earlier)
    }
    return list(out)


def _possible(trace: RankRows, later: int, earlier: int) -> bool:
    one, two = trace.gpu[earlier], trace.gpu[later]
    apart = (one.device, one.stream) != (two.device, two.stream)
    return apart and one.end <= two.start + TOLERANCE


def _told(syncs: Sequence[Sync], launched: Launched) -> Iterator[Edge]:
    for sync in syncs:
        device = next((d for d, s in launched.streams if s == sync.stream), -1)
        begun = launched.called.get(sync.correlation, sync.start)
        if sync.on_call >= 0 and sync.on_call not in launched.called:
            continue  # the file lacks the call that recorded the event: what it follows is unknown
        recorded = launched.called.get(sync.on_call, begun)
        yield (
            launched.next((device, sync.stream), begun),
            launched.last((device, sync.on_stream), recorded),
        )


def _inferred(
    trace: RankRows, launch: Sequence[int], messages: Sequence[tuple[CommunicationRecord, ...]]
) -> Iterator[Edge]:
    ops: dict[int, list[int]] = defaultdict(list)
    for op, row in enumerate(launch):
        if row >= 0:
            ops[row].append(op)
    posting, waiting = sides(trace, launch, messages)
    inside, waited = Enclosing(posting), Enclosing(waiting)
    unwaited = Unwaited(messages)
    records = any(names.RECORDS.match(call.name) for call in trace.calls)
    threads: dict[int, _Thread] = defaultdict(lambda: _Thread(trace, messages, unwaited, records))
    for row, call in enumerate(trace.calls):
        thread = threads[call.thread]
        if row in ops:
            yield from thread.launch(ops[row], inside(*_place(call)))
        elif names.RECORDS.match(call.name):
            thread.record()
        elif names.WAITS.match(call.name):
            within, wait = inside(*_place(call)), waited(*_place(call))
            thread.wait(within, wait if isinstance(wait, Posted) else None)


def _place(call: RuntimeCall) -> tuple[int, int]:
    return call.thread, call.start


def sides(
    trace: RankRows, launch: Sequence[int], messages: Sequence[tuple[CommunicationRecord, ...]]
) -> tuple[list[Posted], list[Posted]]:
    """Return the host's collectives and its waits for them; old files do not tell them apart."""
    within = Enclosing(trace.posted)
    launching = {
        id(within(*_place(trace.calls[row])))
        for row, message in zip(launch, messages, strict=True)
        if message and row >= 0
    }
    posting: list[Posted] = []
    waiting: list[Posted] = []
    for posted in trace.posted:
        unnamed = not posted.message.collective and id(posted) not in launching
        is_wait = posted.message.collective == "wait" or (unnamed and posted.message.size == 0)
        (waiting if is_wait else posting).append(posted)
    return posting, waiting


class _Thread:
    """What one host thread has launched and recorded, and what its next launch waits for."""

    def __init__(
        self,
        trace: RankRows,
        messages: Sequence[tuple[CommunicationRecord, ...]],
        unwaited: Unwaited,
        records: bool,
    ) -> None:
        self._gpu = trace.gpu
        self._messages, self._records = messages, records  # whether the file has event records
        self._unwaited = unwaited  # of all threads
        self._last = self._computed = self._recorded = -1  # rows of trace.gpu
        self._posted: object = None  # the collective whose kernel was launched last
        self._next: list[int] = []  # what the next launch on another stream waits for
        self._stayed: list[int] = []  # likewise: of the stream that was last launched on
        self._on: Stream = (-1, -1)  # that stream
        self._compute: list[int] = []  # what the next launch of something that computes waits for

    def launch(self, ops: list[int], inside: object) -> Iterator[Edge]:
        """Launch ops; yield what the first of them waits for."""
        first = ops[0]
        mine = self._stream(first)
        if mine != self._on:  # the others have been looked at: each waits for another stream
            yield from ((first, earlier) for earlier in self._stayed)
            self._stayed, self._on = [], mine
        yield from ((first, earlier) for earlier in self._next)
        self._stayed += (op for op in self._next if op >= 0 and self._stream(op) == mine)
        self._next = []
        self._last, self._posted = ops[-1], inside
        if not self._messages[first]:
            yield from ((first, earlier) for earlier in self._compute)
            self._compute, self._computed = [], ops[-1]
        else:
            self._unwaited.append(first)

    def record(self) -> None:
        """Take a cudaEventRecord: a later wait means what was launched last."""
        self._recorded = self._last

    def wait(self, inside: object, wait: Posted | None) -> None:
        """Take a cudaStreamWaitEvent, in a collective, in a wait for one, or in neither."""
        if wait is not None:
            self._compute.append(self._unwaited.pop(wait.message.sequence))
        elif inside is not None:
            if inside is not self._posted:
                self._next.append(self._computed)
        elif not self._records and self._unwaited:
            self._compute.append(self._unwaited.pop(-1))
        elif not self._records:
            self._next.append(self._last)
        elif self._recorded >= 0 and self._messages[self._recorded]:
            self._compute.append(self._recorded)
        else:
            self._next.append(self._recorded)

    def _stream(self, op: int) -> Stream:
        return self._gpu[op].device, self._gpu[op].stream
