"""The state of a GPU that kernels and communication share: who holds how much of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import fsum
from typing import Any

from sim.engine.clock import Due
from sim.machine.hardware import Machine


class KernelSeconds:
    """The seconds of every work under a state of a GPU, memoized: a run meets few states."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tables: dict[tuple[int, float, int], array[float]] = {}

    def __call__(self, sms: int, hbm: float, beside: int) -> array[float]:
        """Return the seconds of every work while this is in use, an array with one per work.

        Communication holds ``sms`` SMs and a share ``hbm`` of memory bandwidth; ``beside`` kernels
        run at the same time.
        """
        state = (sms, hbm, beside)
        table = self._tables.get(state)
        if table is None:
            if len(self._tables) > 4096:
                self._tables.clear()
            table = array("d", self._machine.kernels(sms, hbm, max(beside, 1)).tobytes())
            self._tables[state] = table
        return table


class RankGpu:
    """The GPU of one simulated rank."""

    __slots__ = ("_moving", "_seconds", "_table", "hbm", "rank", "running", "sms")

    def __init__(self, rank: int, seconds: KernelSeconds) -> None:
        self.rank = rank
        self.sms = 0  # held by communication
        self.hbm = 0.0  # share of memory bandwidth that communication takes
        self._moving: dict[int, float] = {}  # part -> its share while it moves
        self.running: dict[int, KernelChain] = {}  # segment -> its kernels
        self._seconds = seconds
        self._table: array[float] | None = None  # of a kernel that runs by itself, if still true

    def hold(self, sms: int) -> None:
        """Let communication hold ``sms`` SMs more, or fewer when negative."""
        self.sms += sms
        self._table = None

    def move(self, part: int, share: float) -> None:
        """Let a part take this share of memory bandwidth; their sum does not depend on order."""
        moving = self._moving
        if share:
            moving[part] = share
        else:
            moving.pop(part, None)
        self.hbm = fsum(moving.values()) if moving else 0.0
        self._table = None

    def seconds(self) -> array[float]:
        """Return the seconds of every work beside all that runs now."""
        if len(self.running) > 1:
            return self._seconds(self.sms, self.hbm, len(self.running))
        if self._table is None:
            self._table = self._seconds(self.sms, self.hbm, 1)
        return self._table


class KernelChain(Due):
    """A segment of kernels that runs on a shared GPU, and how far its running kernel has come.

    It is its own event: it stands in the queue once for every end that was computed for it, and
    only the latest of these counts.
    """

    __slots__ = ("at", "left", "segment", "since", "table")

    table: array[float]
    """Seconds of every work, under which its ends were computed."""

    def __init__(
        self,
        callbacks: tuple[Callable[[Any], None]],
        segment: int,
        at: int,
        now: float,
    ) -> None:
        self.callbacks = callbacks
        self._ok = True
        self.segment = segment
        self.at = at  # position of the kernel that the next two speak of
        self.left = 1.0  # share of that kernel still to run
        self.since = now

    def advance(self, position: int, began: float, seconds: float, now: float) -> float:
        """Return the share of the kernel at ``position`` that is still to run at ``now``.

        Until now it ran at a speed at which the whole kernel takes ``seconds``.
        """
        if position != self.at:
            self.at, self.left, self.since = position, 1.0, began
        self.left = max(0.0, self.left - (now - self.since) / seconds)
        self.since = now
        return self.left
