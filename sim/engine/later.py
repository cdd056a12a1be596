"""By how much may a step be too long whose communication takes the longest latency of its clones?

No chain of ops is too long by more than the sum of the differences of latencies along it
(``machine.apart``). The largest such sum is the time of the step when nothing else takes any time.
So that run needs of the segments of the step only what takes time then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sim.engine.run import Stats
from sim.engine.segments import Segments
from sim.engine.uses import CHAIN, PLAIN, Uses
from sim.graph import Graph
from sim.machine.hardware import Machine


def apart(machine: Machine) -> bool:
    """Return whether some communication stands for one of another latency."""
    return machine.apart is not None and bool(machine.apart.any())


def differences(machine: Machine) -> Machine:
    """Return the machine on which communication takes ``machine.apart``, and nothing else does."""
    assert machine.apart is not None
    none, nobody = np.zeros(len(machine.apart)), np.zeros(len(machine.apart), np.int32)
    return replace(
        machine,
        arithmetic=none,
        memory=none,
        fixed=none,
        size=none,
        hbm=none,
        latency=machine.apart,
        sms=nobody,
        link_start=np.append(nobody, nobody[:1]),
        link=nobody[:0],
        coefficient=none[:0],
        factor=None,
        limits=None,
    )


def later(
    graph: Graph,
    segs: Segments,
    facts: Uses,
    machine: Machine,
    run: Callable[..., tuple[Any, Any]],
) -> float | None:
    """Return the seconds by which the step is too long at most, if ops share links alike.

    ``segs`` and ``facts`` are those of the graph on ``machine``, and ``run`` runs segments (see
    :mod:`sim.engine.loop`). None if the graph gets stuck.
    """
    if not apart(machine):
        return 0.0
    only = differences(machine)
    bounds, done = run(graph, _shortened(graph, segs, only), _free(facts), only, None, Stats())
    if not np.frombuffer(done, np.bool_).all():
        return None
    slots = np.frombuffer(bounds, np.float64)
    return float(slots.max() - slots.min())


def _shortened(graph: Graph, segs: Segments, machine: Machine) -> Segments:
    """Return segments without ops that take no time, but for the last of each, and without lags."""
    kept = (machine.alone != 0.0)[graph.work][segs.order]
    kept[segs.first[1:] - 1] = True
    begins = np.append(0, np.cumsum(np.add.reduceat(kept, segs.first[:-1], dtype=np.int32)))
    return replace(
        segs,
        order=segs.order[kept],
        first=begins.astype(np.int32),
        lag=np.zeros(len(segs)),
    )


def _free(facts: Uses) -> Uses:
    """Return the facts where nothing is shared."""
    return replace(
        facts,
        how=np.where(facts.how == CHAIN, PLAIN, facts.how).astype(np.int8),
        beside=np.zeros_like(facts.beside),
        sms=np.zeros_like(facts.sms),
        on_links=np.zeros_like(facts.on_links),
        uses_hbm=np.zeros_like(facts.uses_hbm),
    )
