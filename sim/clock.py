"""SimPy's environment with absolute times, and the one kind of event that the engine schedules."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import simpy

NORMAL, RESOLVE = 1, 2  # priorities within one instant


class Due:
    """An event that is always due: it only carries what to call, and with what.

    ``callbacks`` and ``_ok`` are what SimPy's loop looks at. A superseded event is *dropped* by
    emptying its callbacks, since nothing can be taken out of the queue.
    """

    __slots__ = ("_ok", "callbacks", "what")

    def __init__(self, callback: Callable[[Any], None], what: Any) -> None:
        self.callbacks: tuple[Callable[[Any], None], ...] | None = (callback,)
        self.what = what
        self._ok = True

    def __lt__(self, other: Due) -> bool:
        """Two ends of one op at one time: the dropped one does nothing, in either order."""
        return False

    def drop(self) -> None:
        """Let nothing happen when this event's time comes."""
        self.callbacks = ()


class Clock(simpy.Environment):
    """An environment whose events can be scheduled at an absolute time, ordered by op index."""

    def at(self, time: float, order: int, event: Due, priority: int = NORMAL) -> Due:
        """Schedule ``event`` at ``time``; equal times go by ``priority``, then by ``order``."""
        heappush(self._queue, (time, priority, order, event))  # type: ignore[misc,arg-type]
        return event
