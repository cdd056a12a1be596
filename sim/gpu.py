"""One GPU shared by kernels and communication: what its state is, and what runs on it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from sim.clock import Due
from sim.hardware import Machine

CLEAN = (0, 0.0, 1)  # a kernel alone
State = tuple[int, float, int]  # SMs held by communication, share of HBM it takes, kernels running


class Gpu:
    """The state of one simulated rank's GPU."""

    __slots__ = ("moving", "rank", "running", "sms")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sms = 0
        self.moving: dict[int, float] = {}  # part -> share of memory bandwidth while it moves
        self.running: dict[int, Chain] = {}  # segment -> its kernels

    def state(self) -> State:
        """What decides how fast kernels run. Shares are added in order of part: same bits always."""
        moving = self.moving
        hbm = sum(moving[part] for part in sorted(moving)) if moving else 0.0
        return (self.sms, hbm, len(self.running))


class Chain(Due):
    """A segment of kernels under way on a shared GPU, and how far its running kernel has come.

    It is its own event: it stands in the queue once for every end that was ever computed for it,
    and only the time that still holds counts (see :meth:`sim.sharing.Sharing.end_chain`).
    """

    __slots__ = ("at", "left", "segment", "since", "state")

    def __init__(
        self, callbacks: tuple[Callable[[Any], None]], segment: int, at: int, now: float, state: State
    ) -> None:
        self.callbacks = callbacks
        self._ok = True
        self.segment = segment
        self.state = state  # under which its ends were computed
        self.at = at  # position of the kernel that the next two speak of
        self.left = 1.0  # share of that kernel still to run
        self.since = now

    def advance(self, position: int, began: float, seconds: float, now: float) -> float:
        """The share of the kernel at ``position`` still to run, which took ``seconds`` so far."""
        if position != self.at:
            self.at, self.left, self.since = position, 1.0, began
        self.left = max(0.0, self.left - (now - self.since) / seconds)
        self.since = now
        return self.left


class KernelSeconds:
    """Seconds of every work under a state, remembered: a run meets few states."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tables: dict[State, array[float]] = {}

    def __call__(self, state: State) -> array[float]:
        table = self._tables.get(state)
        if table is None:
            if len(self._tables) > 4096:
                self._tables.clear()
            sms, hbm, beside = state
            table = array("d", self._machine.kernels(sms, hbm, max(beside, 1)).tobytes())
            self._tables[state] = table
        return table
