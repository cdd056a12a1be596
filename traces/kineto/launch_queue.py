"""Finds launches that wait for a place in their stream.

A stream takes about a thousand launches; then a call returns only when one of them is done. Where
the GPU is the limit, a host that runs ahead stands still in this way, in calls that look like slow
launches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from traces.kineto.rows import RankRows, RuntimeCall
from traces.kineto.waits import TOLERANCE

FULL = 1000
"""The fewest launches that fill a stream: HTA's trace of a V100 shows 1,022."""

Stream = tuple[int, int]  # device and stream


class LaunchQueue:
    """Knows how many launches of a stream are under way, and which is done next."""

    def __init__(self, trace: RankRows, ops: Mapping[int, Sequence[int]]) -> None:
        self._gpu = trace.gpu
        self._begun: dict[Stream, list[int]] = {}
        self._done: dict[Stream, list[tuple[int, int]]] = {}  # end and row of each launch's last op
        for row in sorted(ops, key=lambda row: trace.calls[row].start):
            last = max(ops[row], key=lambda op: trace.gpu[op].end)
            of = trace.gpu[last]
            self._begun.setdefault((of.device, of.stream), []).append(trace.calls[row].start)
            self._done.setdefault((of.device, of.stream), []).append((of.end, last))
        for done in self._done.values():
            done.sort()

    def awaited(self, call: RuntimeCall, op: int) -> int:
        """Return the op whose end let a launch into a full stream; -1 if it did not wait."""
        stream = self._gpu[op].device, self._gpu[op].stream
        begun, done = self._begun[stream], self._done[stream]
        over = bisect_right(done, (call.start, len(self._gpu)))
        if bisect_left(begun, call.start) - over < FULL:
            return -1
        let = bisect_right(done, (call.end + TOLERANCE, len(self._gpu)))
        return done[let - 1][1] if let > over else -1
