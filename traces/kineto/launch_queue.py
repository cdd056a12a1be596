"""Launches that wait for a place: a stream takes about a thousand, and then a call does not return
before one of them is done. Where the GPU is the limit a host that runs ahead stands still so, in
calls that look as if launching took long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from traces.kineto.rows import Call, RankTrace
from traces.kineto.waits import TOLERANCE

FULL = 1000
"""Launches that a stream holds at least: 1,022 in a trace of a V100 that HTA has."""

Stream = tuple[int, int]  # device and stream


class LaunchQueue:
    """How many launches of a stream are under way, and which is done next."""

    def __init__(self, trace: RankTrace, ops: Mapping[int, Sequence[int]]) -> None:
        self._gpu = trace.gpu
        self._begun: dict[Stream, list[int]] = {}
        self._done: dict[Stream, list[tuple[int, int]]] = {}  # end and row of each one's last op
        for row in sorted(ops, key=lambda row: trace.calls[row].start):
            last = max(ops[row], key=lambda op: trace.gpu[op].end)
            of = trace.gpu[last]
            self._begun.setdefault((of.device, of.stream), []).append(trace.calls[row].start)
            self._done.setdefault((of.device, of.stream), []).append((of.end, last))
        for done in self._done.values():
            done.sort()

    def awaited(self, call: Call, op: int) -> int:
        """The op whose end let a launch into a full stream; -1 where it had not to wait."""
        stream = self._gpu[op].device, self._gpu[op].stream
        begun, done = self._begun[stream], self._done[stream]
        over = bisect_right(done, (call.start, len(self._gpu)))
        if bisect_left(begun, call.start) - over < FULL:
            return -1
        let = bisect_right(done, (call.end + TOLERANCE, len(self._gpu)))
        return done[let - 1][1] if let > over else -1
