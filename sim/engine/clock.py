"""SimPy's environment with absolute times, and the one kind of event that the engine schedules."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

import simpy

NORMAL = 1  # priority; equal times go by turn


class Due:
    """An event that carries a function to call and the argument to call it with.

    ``callbacks`` and ``_ok`` are what SimPy's loop looks at. A superseded event is *dropped* by
    emptying its callbacks, since nothing can be taken out of the queue.
    """

    __slots__ = ("_ok", "callbacks", "what")

    def __init__(self, callback: Callable[[Any], None], what: Any) -> None:
        self.callbacks: tuple[Callable[[Any], None], ...] | None = (callback,)
        self.what = what
        self._ok = True

    def __lt__(self, other: Due) -> bool:
        """Return False: of events of one time and turn, all but one are dropped, or all alike."""
        return False

    def drop(self) -> None:
        """Let nothing happen when this event's time comes."""
        self.callbacks = ()


class Clock(simpy.Environment):
    """An environment whose events can be scheduled at an absolute time.

    Events of one instant are applied by their turn (:class:`~sim.engine.uses.Uses`: by op, then by
    part), in whatever order they were scheduled. Once all events of an instant have been applied,
    ``settle`` is called if something has set ``unsettled``, before time goes on. It may schedule
    events at that same instant; then it can be called once more after these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unsettled = False
        self.settle: Callable[[], None] = no_change

    def at(self, time: float, turn: int, event: Due) -> Due:
        """Schedule ``event`` at ``time``; events of equal times are applied by ``turn``."""
        heappush(self._queue, (time, NORMAL, turn, event))  # type: ignore[misc]
        return event

    def run_all(self) -> None:
        """Run until nothing is left: SimPy's ``run`` and ``step`` in one loop, for speed."""
        queue: list[Any] = self._queue
        while queue:
            self._now, _, _, event = heappop(queue)
            callbacks, event.callbacks = event.callbacks, None
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
            if self.unsettled and (not queue or queue[0][0] > self._now):
                self.settle()
                self.unsettled = False


def no_change() -> None:
    """Settle nothing, since nothing is shared."""


@contextmanager
def no_garbage() -> Iterator[None]:
    """Switch the collector of cyclic garbage off: it would walk millions of live objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
