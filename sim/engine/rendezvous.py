"""Communication that shares nothing and only waits for its peers, which is cheap to run."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import numpy as np

from sim.engine.clock import NORMAL, Due
from sim.engine.run import Run


def rendezvous(run: Run, complete: Callable[[int], None]) -> Callable[[int], None]:
    """Return the function that starts a segment that is such a communication.

    It ends for all members after the seconds it takes alone, from when the last of them started.
    """
    graph, segs, machine, env = run.graph, run.segs, run.machine, run.env
    queue: list[Any] = env._queue
    bounds, first, events = run.bounds, run.first, run.events
    rows = np.append(segs.part_row, 0)  # a segment without parts is never asked for its own
    part_of = graph.part[rows[segs.part_start[:-1]]].tolist() if len(graph.part) else []
    missing, turn = run.missing, run.part_turn
    seconds = (machine.latency + machine.fixed + machine.transfer)[graph.part_work].tolist()
    begins, members = run.member_start, run.members

    def start(s: int) -> None:
        now = env._now
        bounds[first[s] + s] = now
        part = part_of[s]
        left = missing[part] = missing[part] - 1
        if not left:
            due = events[s]
            due.callbacks, due.what = callbacks, part
            heappush(queue, (now + seconds[part], NORMAL, turn[part], due))

    def end(due: Due) -> None:
        part, now = due.what, env._now
        for s in members[begins[part] : begins[part + 1]]:
            bounds[first[s + 1] + s] = now
            complete(s)

    callbacks = (end,)
    return start
