"""By how much a step may come out too long where one rank stands for clones of other latencies.

Folding proves that clones load links alike (:mod:`sim.machine.symmetry`). Their messages may still
cross one switch more or less than the representative's, which then takes the longest latency, and
the microseconds add up along the pipeline. So it is found for each step what they come to at most,
and where that could matter every clone is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.engine import simulate
from sim.graph import Graph, zeros
from sim.machine.hardware import Machine
from sim.runs.fold import Lanes

FEW_OPS = 200_000
"""A step of so many ops is simulated in a second, so that there all clones are."""
MOST_OPS = 5_000_000
"""So many ops are simulated at most where ranks are kept from being folded."""
SHARE = 1e-4
"""Of a step that would have more ops than are few: how much longer folding may make it."""


def exact(machine: Machine) -> bool:
    """Whether no communication stands for one of another latency."""
    return machine.apart is None or not machine.apart.any()


def later(graph: Graph, machine: Machine) -> float:
    """Seconds by which the step is too long at most, but for other sharing: the longest chain.

    Of two machines whose latencies are ``apart``, no chain of ops takes longer on the slower one by
    more than the sum of that along it. The largest of these sums is the time of the step when
    nothing else takes any.
    """
    if machine.apart is None or exact(machine):
        return 0.0
    none, nobody = np.zeros(len(machine.apart)), np.zeros(len(machine.apart), np.int32)
    only = replace(
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
    )
    return simulate(replace(graph, lag=zeros(len(graph))), only).seconds


def good_enough(lanes: Lanes, others: Sequence[Lanes], graph: Graph, machine: Machine) -> bool:
    """Whether to stay with these lanes, rather than simulate the first of the others."""
    ops = len(graph) * len(others[0].simulated) / len(lanes.simulated)
    if ops <= FEW_OPS:
        return False
    return ops > MOST_OPS or later(graph, machine) <= SHARE * shortest(graph, machine)


def shortest(graph: Graph, machine: Machine) -> float:
    """Seconds that the step takes at least: those of the kernels of its busiest stream."""
    stream = graph.rank.astype(np.int64) * len(graph.streams) + graph.stream
    kernel = np.diff(graph.part_start) == 0
    busy = np.bincount(stream[kernel], machine.alone[graph.work[kernel]])
    return float(busy.max(initial=0.0))
