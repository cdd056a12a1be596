"""What happens when a segment ends: each segment that waits for it has one need less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.engine.clock import Due
from sim.engine.run import Progress, Run

Met = Callable[[Due], None]


def need_met(run: Run) -> Met:
    """Return the function to call when a lag is over: its segment then has one need less."""
    needs, start = run.needs, run.start

    def met(due: Due) -> None:
        s = due.what
        needs[s] -= 1
        if not needs[s]:
            start[s](s)

    return met


def begin(run: Run, met: Met) -> None:
    """Schedule the segments that lead their stream and wait for nothing, or for a lag."""
    segs, needs = run.segs, run.needs
    for s in np.flatnonzero(segs.heads & ((segs.needs == 0) | (segs.lag > 0))).tolist():
        needs[s] += 1  # the beginning of time, and for the first of a stream the lag after it
        run.env.at(segs.lag[s].item(), run.turn[s], Due(met, s))


def completion(run: Run, met: Met, progress: Progress | None) -> Callable[[int], None]:
    """Return the function that ends a segment.

    If ``progress`` is given, it is told now and then how many ops have ended.
    """
    segs, env, turn = run.segs, run.env, run.turn
    first, needs, start, done = run.first, run.needs, run.start, run.done
    heads = bytearray(segs.heads.tobytes()) + b"\1"  # nothing is behind the last
    waiter_start, waiter = segs.waiter_start.tolist(), segs.waiter.tolist()
    waiter_lag = segs.waiter_lag.tolist() if segs.waiter_lag.any() else None
    lag = segs.lag.tolist() if segs.lag.any() else None
    ended, of = 0, len(run.graph)

    def complete(s: int) -> None:  # one loop for each op of a run: no calls but those that must be
        nonlocal ended
        done[s] = 1
        if progress is not None:
            ended += first[s + 1] - first[s]
            if s & 1023 == 0:
                progress(ended, of)
        s1 = s + 1
        a, b = waiter_start[s], waiter_start[s1]
        if a != b:
            for k in range(a, b):
                w = waiter[k]
                if waiter_lag is not None and waiter_lag[k]:
                    env.at(env._now + waiter_lag[k], turn[w], Due(met, w))
                elif needs[w] == 1:
                    needs[w] = 0
                    start[w](w)
                else:
                    needs[w] -= 1
        if not heads[s1]:
            if lag is not None and lag[s1]:
                env.at(env._now + lag[s1], turn[s1], Due(met, s1))
            elif needs[s1] == 1:
                needs[s1] = 0
                start[s1](s1)
            else:
                needs[s1] -= 1

    return complete
