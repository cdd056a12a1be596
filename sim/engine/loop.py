"""The event loop of the engine: it starts and ends the ops of a graph in the order of time.

SimPy keeps the clock and the queue. An op starts when it heads its stream and all its waits have
ended. These rules make a run exact and reproducible to the bit, in any engine that follows them:

- every end is an absolute time, computed once and scheduled at that time;
- the events of one instant are applied by op, then by part, whatever scheduled them first, and
  only then are shared rates solved again;
- the remaining work of an activity advances only when its own rate changes.

Consecutive kernels run as one segment (:mod:`~sim.engine.segments`) where nothing between them
waits or is waited for. When the GPU is shared, a change in the middle of a segment moves the ends
of the running kernel and of those behind it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sim.engine.choice import chosen
from sim.engine.clock import no_change, no_garbage
from sim.engine.clocks import throttled
from sim.engine.communication import CommunicationSegments
from sim.engine.completion import begin, completion, need_met
from sim.engine.deadlock import DeadlockError
from sim.engine.kernels import Kernels
from sim.engine.later import later
from sim.engine.plain import plain
from sim.engine.rendezvous import rendezvous
from sim.engine.run import Progress, Run, Stats
from sim.engine.segments import Segments, segments
from sim.engine.uses import CHAIN, COMMUNICATION, PLAIN, RENDEZVOUS, Uses, uses
from sim.graph import Graph
from sim.machine.hardware import Machine
from sim.timeline import Timeline

Buffer: TypeAlias = "array[float] | bytearray | NDArray[Any]"


def simulate(
    graph: Graph,
    machine: Machine,
    progress: Progress | None = None,
    stats: Stats | None = None,
    engine: str = "auto",
) -> Timeline:
    """Run every op of ``graph`` on ``machine`` and return the times at which they ran.

    Where the machine limits power, this is the second of two runs: a first one at boost clock says
    which clock each kernel has (:mod:`sim.engine.clocks`).

    ``progress``, if given, is called now and then with the ops done and the ops in all. ``stats``,
    if given, is added to: how often ops met on links and GPUs, and the first of both runs.
    ``engine`` is simpy, compiled or auto, with one timeline (:mod:`sim.engine.choice`). Raises
    DeadlockError if some ops can never run.
    """
    if not len(graph):
        return Timeline(graph, np.empty(0), np.empty(0))
    facts = uses(graph, machine)
    segs = segments(graph, facts)
    name = chosen(engine, len(graph)).name
    run, found = _engine(name), stats or Stats()
    if found.asks_later:
        found.later = later(graph, segs, facts, machine, _engine(name))

    def at_clocks(machine: Machine) -> Timeline:
        return _timeline(graph, segs, *run(graph, segs, facts, machine, progress, found))

    timeline = at_clocks(machine)
    held = throttled(timeline, machine)
    if held is machine:
        return timeline
    found.boost = timeline
    return at_clocks(held)  # clocks change nothing of what may meet


def _engine(name: str) -> Callable[..., tuple[Buffer, Buffer]]:
    """Return a function that runs segments, and returns their bounds and which have ended."""
    if name == "simpy":
        return _run
    from sim.engine.compiled.run import Runs  # here, since it loads a compiler

    return Runs()


def _timeline(graph: Graph, segs: Segments, bounds: Buffer, done: Buffer) -> Timeline:
    """Return the times of ops; segment s has its start, then its ends, from slot first[s] + s."""
    slots = np.frombuffer(bounds, np.float64)
    slot = np.empty(len(graph), np.int64)
    slot[segs.order] = np.arange(len(graph))
    slot += segs.of  # where each op's start stands: its segment's, or the end of the op before
    start = slots[slot]
    slot += 1
    end = slots[slot]
    ended = np.frombuffer(done, np.bool_)
    if not ended.all():
        raise DeadlockError(graph, np.isfinite(start), ended[segs.of])
    return Timeline(graph, start, end)


def _run(
    graph: Graph,
    segs: Segments,
    facts: Uses,
    machine: Machine,
    progress: Progress | None,
    stats: Stats,
) -> tuple[Buffer, Buffer]:
    """Run the event loop until nothing is left that can go on; return bounds, and what ended."""
    run = Run.of(graph, segs, facts, machine, stats)
    met = need_met(run)
    complete = completion(run, met, progress)
    how = np.maximum.reduceat(facts.how[segs.order], segs.first[:-1])
    starters = {PLAIN: plain(run, complete), RENDEZVOUS: rendezvous(run, complete)}
    if ((how == CHAIN) | (how == COMMUNICATION)).any():
        starters[CHAIN], starters[COMMUNICATION] = _shared(run, complete)
    run.start.extend(starters[code] for code in how.tolist())
    begin(run, met)
    with no_garbage():
        run.env.run_all()
    run.start.clear()  # like the next, it refers to itself, and so would outlive this run
    run.env.settle = no_change
    if progress is not None:
        progress(len(graph), len(graph))
    return run.bounds, run.done


def _shared(run: Run, complete: Callable[[int], None]) -> tuple[Callable[[int], None], ...]:
    """Return what starts kernels that may be slowed, and communication that shares something."""
    kernels = Kernels(run, complete)
    communication = CommunicationSegments(run, kernels, complete)

    def settle() -> None:
        """Give new speeds to links, then to GPUs, when an instant's events have been applied."""
        run.stats.settled += 1
        communication.settle()
        kernels.settle()

    run.env.settle = settle
    return kernels.start, communication.start
