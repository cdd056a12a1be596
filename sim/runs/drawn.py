"""A sample of replicas for all of them, where noise tells replicas apart.

The step of some replicas gets longer with their number, by the laws of the greatest of so many
draws (:mod:`sim.runs.latest`). So steps of parts of the sample tell the step of all. One replica of
the sample stands for all that are not drawn, and comes so much later as the last of them is
expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sim.graph import Compute, Floats, Graph, Longs
from sim.machine.hardware import Machine
from sim.runs.cut import cut
from sim.runs.latest import latest, parts
from sim.runs.meetings import held
from sim.timeline import Timeline

Simulate = Callable[[Graph, Machine], Timeline]


@dataclass(frozen=True)
class Drawn:
    """The step of all replicas, from a sample of them."""

    timeline: Timeline
    replicas: int  # that are simulated
    error: float  # standard deviation of its seconds, for replicas that are not


def drawn(
    timeline: Timeline, machine: Machine, replica: Longs, skewness: float, simulate: Simulate
) -> Drawn:
    """Return the step of all replicas.

    ``timeline`` is that of the sample. ``replica`` has that of each rank of the job, and
    ``skewness`` is that of the noise on a kernel.
    """
    graph = timeline.graph
    mine, others = np.unique(replica[graph.rank]), len(np.unique(replica))
    others -= len(mine)
    if not others:
        return Drawn(timeline, len(mine), 0.0)
    last = [(len(mine), timeline.seconds)]
    for some in parts(mine.tolist())[1:]:
        less = simulate(*cut(graph, machine, np.isin(replica[graph.rank], some)))
        last.append((len(some), less.seconds))
    found = latest(last, others, skewness * of_sum(_kernels(timeline, machine)))
    graph = held(timeline, replica, found.seconds - timeline.seconds)
    return Drawn(simulate(graph, machine), len(mine), found.error)


def of_sum(seconds: Floats) -> float:
    """Return the skewness of a sum of terms with these spreads, over that of each term.

    >>> of_sum(np.full(16, 2.0))  # of n equal terms it is 1 / sqrt(n)
    0.25
    """
    square = math.fsum(seconds**2)
    return math.fsum(seconds**3) / square**1.5 if square > 0 else 0.0


def _kernels(timeline: Timeline, machine: Machine) -> Floats:
    """Return the seconds of the kernels of the rank that ends last."""
    graph = timeline.graph
    kernel = np.array([isinstance(work, Compute) for work in graph.works])[graph.work]
    rank = graph.rank[np.argmax(timeline.end)]
    out: Floats = machine.alone[graph.work[kernel & (graph.rank == rank)]]
    return out
