"""The engine: the times at which the ops of a graph run on a given machine.

SimPy keeps the clock and the queue; an op starts when it heads its stream and all its waits have
ended. Rules that make a run exact and reproducible to the bit, whatever engine follows them:

- every end is an absolute time, computed once and scheduled at that time;
- the events of one instant are applied by op, then by part, whatever scheduled them first, and
  only then are shared rates solved again;
- the remaining work of an activity advances only when its own rate changes.

Consecutive kernels that nothing else meets run as one segment (:mod:`~sim.engine.segments`); when
the GPU is shared, a change in the middle of a segment splits it at the kernel that is running.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappush
from itertools import accumulate
from typing import Any

import numpy as np

from sim.engine.clock import Clock, Due, no_garbage
from sim.engine.communication import CommunicationSegments
from sim.engine.deadlock import DeadlockError
from sim.engine.kernels import Kernels
from sim.engine.meetings import meetings
from sim.engine.run import Run, Stats
from sim.engine.segments import Segments, segments
from sim.engine.uses import Uses, uses
from sim.graph import Graph
from sim.machine.hardware import Machine
from sim.timeline import Timeline

Progress = Callable[[int, int], None]  # (ops done, ops in all)


def simulate(
    graph: Graph,
    machine: Machine,
    progress: Progress | None = None,
    stats: Stats | None = None,
) -> Timeline:
    """Run every op of ``graph`` on ``machine``; raise DeadlockError if some can never run.

    ``stats`` is added to: how often activities met on links and GPUs.
    """
    if not len(graph):
        return Timeline(graph, np.empty(0), np.empty(0))
    facts = uses(graph, machine)
    segs = segments(graph, facts)
    bounds, done = _run(graph, segs, facts, machine, progress, stats or Stats())
    return _timeline(graph, segs, bounds, done)


def _timeline(graph: Graph, segs: Segments, bounds: array[float], done: bytearray) -> Timeline:
    """Slots back to ops: segment s keeps its start and then its ends from slot first[s] + s on."""
    slots = np.frombuffer(bounds, np.float64)
    lengths = np.diff(segs.first)
    slot = np.arange(len(graph)) + np.repeat(np.arange(len(segs)), lengths)
    start, end = np.empty(len(graph)), np.empty(len(graph))
    start[segs.order] = slots[slot]
    end[segs.order] = slots[slot + 1]
    if not all(done):
        finished = np.empty(len(graph), np.bool_)
        finished[segs.order] = np.repeat(np.frombuffer(done, np.bool_), lengths)
        raise DeadlockError(graph, np.isfinite(start), finished)
    return Timeline(graph, start, end)


def _run(
    graph: Graph,
    segs: Segments,
    facts: Uses,
    machine: Machine,
    progress: Progress | None,
    stats: Stats,
) -> tuple[array[float], bytearray]:
    """The event loop. Returns the slots of :func:`_timeline` and which segments ended."""
    env = Clock()
    queue: list[Any] = env._queue
    first, heads = segs.first.tolist(), bytearray(segs.heads.tobytes()) + b"\1"
    needs = segs.needs.tolist()
    waiter_start, waiter = segs.waiter_start.tolist(), segs.waiter.tolist()
    waiter_lag = segs.waiter_lag.tolist() if segs.waiter_lag.any() else None
    lag = segs.lag.tolist() if segs.lag.any() else None
    turn = facts.op_turn[segs.order[segs.first[1:] - 1]].tolist()  # of a segment's last op
    work_of = array("i", graph.work[segs.order].astype(np.int32).tobytes())
    seconds = machine.alone[graph.work[segs.order]]
    if machine.factor is not None:
        seconds *= machine.factor[segs.order]
    alone = array("d", seconds.tobytes())
    bounds = array("d", np.full(len(graph) + len(segs), np.nan).tobytes())
    done = bytearray(len(segs))
    ended = 0

    def finish(due: Due) -> None:
        complete(due.what)

    def complete(s: int) -> None:
        """Segment ``s`` has ended: whatever waited for it has one need less."""
        nonlocal ended
        done[s] = 1
        if progress is not None:
            ended += first[s + 1] - first[s]
            if s & 1023 == 0:
                progress(ended, len(graph))
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

    def met(due: Due) -> None:
        s = due.what
        needs[s] -= 1
        if not needs[s]:
            start[s](s)

    def start_plain(s: int) -> None:
        """Kernels beside which nothing runs that could slow them."""
        a, b = first[s], first[s + 1]
        now = env._now
        if b - a == 1:
            bounds[a + s] = now
            bounds[b + s] = end = now + alone[a]
        else:
            ends = array("d", accumulate(alone[a:b], initial=now))
            bounds[a + s : b + s + 1] = ends
            end = ends[-1]
        heappush(queue, (end, 1, turn[s], Due(finish, s)))

    run = Run(
        env, graph, segs, machine, facts, stats, complete, bounds, first, turn, work_of, alone
    )
    kernels = Kernels(run)
    communication = CommunicationSegments(run, kernels)
    starters = (start_plain, kernels.start, communication.start, meetings(run))

    def settle() -> None:
        """All events of this instant are applied: new speeds, of links and then of GPUs."""
        stats.settled += 1
        communication.settle()
        kernels.settle()

    env.settle = settle
    how = np.maximum.reduceat(facts.how[segs.order], segs.first[:-1])
    start = [starters[code] for code in how.tolist()]
    for s in np.flatnonzero(segs.heads & ((segs.needs == 0) | (segs.lag > 0))).tolist():
        needs[s] += 1  # the beginning of time, and for the first of a stream the lag after it
        env.at(segs.lag[s].item(), turn[s], Due(met, s))
    with no_garbage():
        env.run_all()
    if progress is not None:
        progress(len(graph), len(graph))
    return bounds, done
