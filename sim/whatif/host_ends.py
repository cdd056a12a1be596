"""How does a step change if the host's prices lie at an end of their ranges?

A host that is late by little, or not at all, soon decides the whole step if it gets slower. No
derivative tells, so both ends are simulated, at boost clock, unless the graph is large.
"""

from __future__ import annotations

from dataclasses import replace
from math import fsum

import numpy as np

from sim.analysis.critical_path import CriticalPath
from sim.builder.host import HOST, launches
from sim.engine import simulate
from sim.graph import PHASES, Bools, Compute, Floats, Graph
from sim.machine.assumed import ranges
from sim.machine.edits import Edit, applied
from sim.machine.hardware import Machine
from sim.timeline import Timeline

Flags = Bools

MOST_OPS = 100_000
"""The most ops of a graph whose ends are simulated."""
BACKWARD = "IWB"


def host_moves(
    path: CriticalPath, machine: Machine, boost: Timeline
) -> dict[str, tuple[float, float]]:
    """Return by how many seconds the step changes with each assumed value of the host at its ends.

    Of a graph of more than MOST_OPS ops only what is on the critical path counts. Nothing changes
    where the host is not simulated.
    """
    if HOST not in boost.graph.streams:
        return {}
    seconds = fsum(path.seconds.values())
    out = {}
    for name, ops in issued(boost.graph).items():
        of = ranges()[name]
        low, high = (
            _share(path, machine, boost, np.where(ops, one / of.value, 1.0))
            for one in (of.low, of.high)
        )
        out[name] = (low * seconds, high * seconds)
    return out


def issued(graph: Graph) -> dict[str, Flags]:
    """Return by assumed value which ops of a launched graph it lengthens, each of shape (n,)."""
    host = np.array([stream == HOST for stream in graph.streams], np.bool_)[graph.stream]
    compute = np.array([isinstance(work, Compute) for work in graph.works], np.bool_)[graph.work]
    others = np.flatnonzero(~host & ~compute & (np.diff(graph.wait_start) > 0))
    transfers = np.zeros(len(graph), np.bool_)
    transfers[launches(graph, others)] = True
    transfers &= host
    back = np.isin(graph.phase, [PHASES.index(one) for one in BACKWARD])
    return {
        "host.speed": host,
        "host.backward": host & back & ~transfers,
        "host.transfers": transfers,
    }


def _share(path: CriticalPath, machine: Machine, boost: Timeline, factor: Floats) -> float:
    """Return the share by which a step gets longer where each op takes ``factor`` times as long."""
    graph = boost.graph
    if len(graph) > MOST_OPS:
        took = np.array(path.took) * (factor[[*path.ops]] - 1.0)
        return float(took.sum()) / fsum(path.seconds.values())
    _, slower = applied(graph, machine, Edit("kernels", True, factor))
    again = simulate(graph, replace(slower, limits=None, clocks=None))
    return again.seconds / boost.seconds - 1.0
