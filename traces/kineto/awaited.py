"""Finds what a call that waits for the GPU waits for, from the file or from launches and ends.

Without ``cuda_sync`` the file names neither stream nor event. Then a call that waits for a stream
is taken to mean the stream on which its thread launched last; a call that waits for an event, what
its thread had launched when it last recorded one; and a call that waits for the device, all
streams. Where that does not explain when the call returned, it waited for the stream, or for the
op, that ended last before the call did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from traces.kineto.rank import RankRows, RuntimeCall, Sync
from traces.kineto.waits import TOLERANCE, Launched

RETURN = 100_000
"""Nanoseconds that a call may take to return after what it waited for has ended."""

Stream = tuple[int, int]  # device and stream


class Awaited:
    """Finds the GPU ops (rows of ``trace.gpu``) that calls of a rank wait for."""

    def __init__(self, trace: RankRows, launch: Sequence[int], launched: Launched) -> None:
        self._trace, self._launched = trace, launched
        self._calls = [trace.calls[row].start if row >= 0 else None for row in launch]
        self._rows: dict[Stream, list[int]] = {}
        for row, op in enumerate(trace.gpu):
            self._rows.setdefault((op.device, op.stream), []).append(row)
        self._ends = {s: [trace.gpu[k].end for k in rows] for s, rows in self._rows.items()}
        self._unknown = {s: _until(self._calls, rows) for s, rows in self._rows.items()}
        self._ended = sorted((op.end, row) for row, op in enumerate(trace.gpu))
        self._last: dict[int, int] = {}  # thread -> the op that it launched last
        self._recorded: dict[int, int] = {}  # thread -> its last op when it last recorded an event
        self._told = {sync.correlation: sync for sync in trace.syncs if _is_host(sync)}

    def launch(self, call: RuntimeCall, ops: Sequence[int]) -> None:
        """Note that a call launches these ops; calls are given in order of time."""
        self._last[call.thread] = ops[-1]

    def record(self, call: RuntimeCall) -> None:
        """Note that a call records an event; calls are given in order of time."""
        self._recorded[call.thread] = self._last.get(call.thread, -1)

    def before(self, row: int) -> int:
        """Return the op before one on its stream, or -1 for the first."""
        op = self._trace.gpu[row]
        first = self._rows[op.device, op.stream][0]
        return row - 1 if row > first else -1

    def device(self, call: RuntimeCall) -> tuple[int, ...]:
        """Return what each stream still had to do at the call, if it ended before the return."""
        return tuple(self._possible(call, self._of_streams(self._rows, call)))

    def of(self, call: RuntimeCall) -> tuple[int, ...]:
        """Return the ops that a synchronising call waits for; none that outlasts it."""
        told = self._told.get(call.correlation)
        if told is not None and (found := self._as_told(call, told)) is not None:
            return tuple(self._possible(call, found))
        if "Event" in call.name:
            guess, others = [self._recorded.get(call.thread, -1)], self._ending(call)
        elif "Stream" in call.name:
            last = self._last.get(call.thread, -1)
            guess = [*self._of_streams([self._stream(last)] if last >= 0 else [], call)]
            others = self._of_streams(self._rows, call)
        else:
            return self.device(call)
        mine = [*self._possible(call, guess)]
        if call.end - max(call.start, self._end(mine)) <= RETURN:
            return tuple(mine)
        other = self._latest(call, others)
        return tuple(other if self._end(other) > self._end(mine) else mine)

    def _as_told(self, call: RuntimeCall, told: Sync) -> list[int] | None:
        if told.kind == "Stream Sync" and told.stream >= 0:
            return [*self._of_streams((s for s in self._rows if s[1] == told.stream), call)]
        if told.kind == "Event Sync" and told.on_stream >= 0:
            begun = self._launched.called.get(told.on_call, call.start)
            on = [s for s in self._rows if s[1] == told.on_stream]
            return [self._launched.last(stream, begun) for stream in on]
        return None

    def _of_streams(self, streams: Iterable[Stream], call: RuntimeCall) -> Iterator[int]:
        """Yield, for each stream, the last op that it had been given at the call.

        Ops after that one whose launch the file lacks count too, if they ended before the call
        returned.
        """
        for stream in streams:
            rows, last = self._rows[stream], self._launched.last(stream, call.start)
            first = last - rows[0] + 1 if last >= 0 else 0
            unknown = self._unknown[stream][first]
            over = bisect_right(self._ends[stream], call.end + TOLERANCE, first, unknown)
            yield rows[over - 1] if over > first else last

    def _ending(self, call: RuntimeCall) -> Iterator[int]:
        """Yield the ops that ended last before a call returned, latest first.

        Only ops that were still running at the call are among them.
        """
        k = bisect_right(self._ended, (call.end + TOLERANCE, len(self._ended)))
        while k and self._ended[k - 1][0] > call.start:
            k -= 1
            begun = self._calls[self._ended[k][1]]
            if begun is None or begun <= call.start:
                yield self._ended[k][1]
                return

    def _latest(self, call: RuntimeCall, rows: Iterable[int]) -> list[int]:
        """Return the op that ended last while the call waited, in a list; empty if none did."""
        ends = [(self._trace.gpu[row].end, row) for row in self._possible(call, rows)]
        return [row for end, row in sorted(ends)[-1:] if end > call.start]

    def _possible(self, call: RuntimeCall, rows: Iterable[int]) -> Iterator[int]:
        gpu = self._trace.gpu
        return (row for row in rows if row >= 0 and gpu[row].end <= call.end + TOLERANCE)

    def _end(self, rows: Sequence[int]) -> int:
        return max((self._trace.gpu[row].end for row in rows), default=0)

    def _stream(self, row: int) -> Stream:
        return self._trace.gpu[row].device, self._trace.gpu[row].stream


def _is_host(sync: Sync) -> bool:
    return sync.stream < 0 or sync.kind != "Stream Wait Event"


def _until(calls: Sequence[int | None], rows: Sequence[int]) -> list[int]:
    """Return, by place in a stream, how far the ops from there on have no launch in the file."""
    out = [*range(len(rows) + 1)]
    for k in range(len(rows) - 1, -1, -1):
        out[k] = out[k + 1] if calls[rows[k]] is None else k
    return out
