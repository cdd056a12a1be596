"""Keeps a device busy for seconds without a gap, and notes how far it came and what it drew."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from traces.record.clock import clock
from traces.record.load import REST
from traces.record.nvml import Gauge, UnreadableError
from traces.record.workers import Here

AHEAD = 0.05  # seconds of work that wait in the queue, so that the host may look elsewhere
EVERY = 0.1  # seconds between two looks at the sensors
PHASES = 0.618  # looks come at all phases of what takes turns: at multiples of this share of
TURN = 0.01  # seconds after a group's end
PROBES = 5  # short runs from rest; their median is the time at full clock
PROBE = 0.005  # seconds of one of them
PAUSE = 0.3  # seconds before it


class Group(NamedTuple):
    """A few runs of one work, issued in a row."""

    work: str
    runs: int
    seconds: float  # that one run takes at full clock, about
    run: Callable[[], object]

    @property
    def length(self) -> float:
        """Seconds of all runs, about."""
        return self.runs * self.seconds


class Mark(NamedTuple):
    """A group that was done, by when, in seconds from the begin."""

    work: str
    runs: int
    at: float


class Tape:
    """What one rank plays on its device; ``samples`` are the sensors' columns of the last play."""

    def __init__(self, here: Here, gauge: Gauge | None) -> None:
        self.here, self._gauge, self._clock = here, gauge, clock(here.device)
        self.samples: dict[str, list[float]] = {}

    def rest(self, seconds: float = REST) -> None:
        """Let the device wait, until all ranks have waited."""
        import torch.distributed as dist

        self._clock.end()
        time.sleep(seconds)
        dist.barrier()
        self._clock.end()

    def play(self, groups: Iterator[Group], seconds: float) -> list[Mark]:
        """Issue groups until ``seconds`` have passed or none are left; return when each ended."""
        waiting: deque[tuple[Group, Any]] = deque()
        marks: list[Mark] = []
        self.samples = {}
        begin, queued, looked = self._clock.now(), 0.0, 0.0
        while not marks or marks[-1].at < seconds:
            group = next(groups, None)
            if group:
                for _ in range(group.runs):
                    group.run()
                waiting.append((group, self._clock.now()))
                queued += group.length
            while waiting and (group is None or queued - waiting[0][0].length > AHEAD):
                done, instant = waiting.popleft()
                marks.append(Mark(done.work, done.runs, self._clock.seconds(begin, instant)))
                queued -= done.length
                if marks[-1].at - looked >= EVERY:
                    looked = marks[-1].at
                    self._look(looked)
            if group is None:
                break
        marks += [
            Mark(g.work, g.runs, self._clock.seconds(begin, instant)) for g, instant in waiting
        ]
        return marks

    def probe(self, run: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds of a run at full clock, and those of the short burst it is of."""
        run()  # loads kernels, allocates
        once = self._short(run, 1)
        count = max(1, round(PROBE / max(once, 1e-9)))
        times = []
        for _ in range(PROBES):
            self.rest(PAUSE)
            times.append(self._short(run, count))
        burst = sorted(times)[PROBES // 2]
        return burst / count, burst

    def _short(self, run: Callable[[], object], count: int) -> float:
        return self.play(iter([Group("", count, 0.0, run)]), 0.0)[-1].at

    def _look(self, at: float) -> None:
        """Add a reading of the sensors; one that fails is the last."""
        if self._gauge is None:
            return
        time.sleep(TURN * (PHASES * len(self.samples.get("t", ())) % 1.0))
        try:
            seen = {"t": at, **self._gauge.read()}
        except UnreadableError:
            self._gauge = None
            return
        for key, value in seen.items():
            self.samples.setdefault(key, []).append(value)
