"""The error of a step in which one rank stands for clones whose latencies differ.

Folding proves that clones load links alike (:mod:`sim.machine.symmetry`). Still, their messages may
cross one switch more or less than those of the representative, which then takes the longest
latency, and the microseconds add up along the pipeline. So an upper bound of the error is found for
each step, and where it could matter, every clone is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.engine import simulate
from sim.engine.later import apart, differences
from sim.graph import Graph, zeros
from sim.machine.hardware import Machine
from sim.runs.fold import Lanes

FEW_OPS = 200_000
"""A step of up to so many ops is simulated in a second, so that all its clones are simulated."""
MOST_OPS = 5_000_000
"""At most so many ops are simulated rather than folded where latencies differ."""
MOST_UNLIKE = 12_000_000
"""At most so many ops are simulated where ranks differ: some 3 GB, a minute with the compiled
engine."""
SHARE = 1e-4
"""The share by which folding may make a step too long if it would have more ops than that."""


def exact(machine: Machine) -> bool:
    """Return whether no communication stands for one of another latency."""
    return not apart(machine)


def later(graph: Graph, machine: Machine) -> float:
    """Return the seconds by which the step is too long at most, if ops share links alike.

    A run of the step itself finds them on the way (:mod:`sim.engine.later`).
    """
    if exact(machine):
        return 0.0
    return simulate(replace(graph, lag=zeros(len(graph))), differences(machine)).seconds


def good_enough(lanes: Lanes, others: Sequence[Lanes], graph: Graph, machine: Machine) -> bool:
    """Return whether to stay with these lanes, rather than simulate the first of the others."""
    ops = len(graph) * len(others[0].simulated) / len(lanes.simulated)
    if ops <= FEW_OPS:
        return False
    return ops > MOST_OPS or later(graph, machine) <= SHARE * shortest(graph, machine)


def shortest(graph: Graph, machine: Machine) -> float:
    """Return the seconds that the step takes at least: those of its busiest stream's kernels."""
    stream = graph.rank.astype(np.int64) * len(graph.streams) + graph.stream
    kernel = np.diff(graph.part_start) == 0
    busy = np.bincount(stream[kernel], machine.alone[graph.work[kernel]])
    return float(busy.max(initial=0.0))
