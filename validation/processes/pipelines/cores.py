"""Models processes that share a machine's cores: which wait for one, and for how long.

A process takes a core when it wakes, after those that woke before, and keeps it until it sleeps or
waits. Real-time priority does exactly that; other processes nearly do. A timed compute works a
little, then sleeps for the rest of its time. When a message arrives, a thread of its receiver has
to take it in, on a core too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from schedules.csv import Move
from validation.processes.pipelines.calls import Compute, Post, Wait
from validation.processes.pipelines.priced import PricedCalls

Then = Callable[[float], None]


class Delays(NamedTuple):
    """Seconds spent waiting for cores, and which sends found no receive."""

    calls: dict[tuple[int, int], float]  # by rank and call: after a compute's time, or a wait
    messages: dict[Move, float]  # by the end that sends
    late: frozenset[Move]  # sends that were posted before their receives
    ends: dict[int, float]  # by rank: when its last call is over


class _Cores:
    """A number of cores, first come first served."""

    def __init__(self, cores: int) -> None:
        self._free, self._queue = cores, deque[Then]()

    def take(self, now: float, then: Then) -> None:
        """Go on, now or as soon as a core is free."""
        if self._free > 0:
            self._free -= 1
            then(now)
        else:
            self._queue.append(then)

    def leave(self, now: float) -> None:
        """Give the core to the one that has waited longest."""
        self._free += 1
        while self._queue and self._free > 0:
            self._free -= 1
            self._queue.popleft()(now)


class _Machine:
    """One step, event by event."""

    def __init__(self, priced: PricedCalls, cores: int) -> None:
        self.priced, self.cores = priced, _Cores(cores - len(priced.rows))
        self.events: list[tuple[float, int, Then]] = []
        self.number = count()
        self.posted: dict[Move, float] = {}
        self.done: set[Move] = set()
        self.awaits: dict[Move, Then] = {}
        self.calls: dict[tuple[int, int], float] = {}
        self.messages: dict[Move, float] = {}
        self.late: set[Move] = set()
        self.ends: dict[int, float] = {}

    def at(self, time: float, then: Then) -> None:
        """Do something at that time; at equal times, in the order of the calls."""
        heappush(self.events, (time, next(self.number), then))

    def run(self) -> Delays:
        """Run all events; after the barrier every thread has a core, even if these are fewer."""
        for rank in range(len(self.priced.rows)):
            self.next(rank, 0, 0.0)
        while self.events:
            time, _, then = heappop(self.events)
            then(time)
        return Delays(self.calls, self.messages, frozenset(self.late), self.ends)

    def next(self, rank: int, k: int, now: float) -> None:
        """Go on to call ``k`` in the thread of a rank, which has a core."""
        row = self.priced.rows[rank][k]
        self.at(now + row.lag, lambda time: self.begin(rank, k, time))

    def begin(self, rank: int, k: int, now: float) -> None:
        """Begin a call, or the end."""
        call = self.priced.rows[rank][k].call
        if isinstance(call, Compute):
            self.compute(rank, k, now)
        elif isinstance(call, Post):
            self.post(rank, k, 0, now)
        elif isinstance(call, Wait):
            self.wait(rank, k, now)
        else:
            self.ends[rank] = now
            self.cores.leave(now)

    def compute(self, rank: int, k: int, now: float) -> None:
        """Work, sleep, and wake up on a core; a real layer computes all the time."""
        row = self.priced.rows[rank][k]
        if not row.sleeps:
            self.at(now + row.seconds[0], lambda time: self.next(rank, k + 1, time))
            return
        rest = row.seconds[0] - row.sleeps

        def on(time: float) -> None:
            self.calls[rank, k] = time - (now + row.sleeps)
            self.at(time + rest, lambda end: self.next(rank, k + 1, end))

        self.at(now + min(self.priced.work, row.sleeps), self.cores.leave)
        self.at(now + row.sleeps, lambda time: self.cores.take(time, on))

    def post(self, rank: int, k: int, part: int, now: float) -> None:
        """Post the ends of a call from number ``part`` on."""
        row = self.priced.rows[rank][k]
        assert isinstance(row.call, Post)
        if part == len(row.call.ends):
            self.next(rank, k + 1, now)
            return
        end, seconds = row.call.ends[part], row.seconds[part]
        self.posted[end] = now
        met = end.other in self.posted
        if end.end == "SEND":
            seconds += self.priced.copy if met else 0.0
            self.late |= set() if met else {end}
        if met:
            self.meet(end if end.end == "SEND" else end.other)
        self.at(now + seconds, lambda time: self.post(rank, k, part + 1, time))

    def meet(self, send: Move) -> None:
        """Move a message, both ends of which are posted, and take it in on a core.

        The first part of its latency is the call that posted it, which has a core.
        """
        early, late = self.priced.messages[send]
        call = min(self.priced.call, late)
        rest = late + self.priced.wire - call
        sent, asked = self.posted[send], self.posted[send.other]
        ready = max(sent + max(early - late, 0.0), asked) + call

        def on(time: float) -> None:
            self.messages[send] = waited = time - ready
            self.at(time + rest, self.cores.leave)
            self.at(time + rest, partial(self.finish, send.other))
            if send in self.late:
                self.at(asked + call + waited + rest, partial(self.finish, send))

        self.at(ready, lambda time: self.cores.take(time, on))
        if send not in self.late:
            self.at(max(asked + call + rest, sent), partial(self.finish, send))

    def finish(self, end: Move, now: float) -> None:
        """Finish an end: what it was waiting for has come."""
        self.done.add(end)
        if then := self.awaits.pop(end, None):
            then(now)

    def wait(self, rank: int, k: int, now: float) -> None:
        """Go on, or leave the core until the last of the ends is done."""
        call = self.priced.rows[rank][k].call
        assert isinstance(call, Wait)
        missing = {end for end in call.ends if end not in self.done}
        if not missing:
            self.next(rank, k + 1, now)
            return

        def one(end: Move, time: float) -> None:
            missing.discard(end)
            if not missing:
                self.cores.take(time, lambda taken: on(time, taken))

        def on(woke: float, taken: float) -> None:
            self.calls[rank, k] = taken - woke
            self.next(rank, k + 1, taken)

        for end in missing:
            self.awaits[end] = partial(one, end)
        self.cores.leave(now)


def delays(priced: PricedCalls) -> Delays:
    """Return how long processes wait for cores in one step."""
    return _Machine(priced, priced.cores or len(priced.messages) + 2 * len(priced.rows)).run()
