"""Kernels that nothing can slow: their ends are known when they start."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappush
from itertools import accumulate
from typing import Any

from sim.engine.clock import NORMAL, Due
from sim.engine.run import Run


def plain(run: Run, complete: Callable[[int], None]) -> Callable[[int], None]:
    """Return the function that starts a segment of such kernels."""
    env, bounds, first, turn, alone = run.env, run.bounds, run.first, run.turn, run.alone
    queue: list[Any] = env._queue
    events = run.events

    def finish(due: Due) -> None:
        complete(due.what)

    callbacks = (finish,)

    def start(s: int) -> None:
        a, b = first[s], first[s + 1]
        now = env._now
        if b - a == 1:
            bounds[a + s] = now
            bounds[b + s] = end = now + alone[a]
        else:
            ends = array("d", accumulate(alone[a:b], initial=now))
            bounds[a + s : b + s + 1] = ends
            end = ends[-1]
        due = events[s]
        due.callbacks, due.what = callbacks, s
        heappush(queue, (end, NORMAL, turn[s], due))

    return start
