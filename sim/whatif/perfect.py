"""The gain if a dimension's communication were hidden perfectly."""

from __future__ import annotations

import numpy as np

from sim.engine import simulate
from sim.graph import Graph
from sim.late import pd
from sim.machine.edits import Edit, applied
from sim.machine.hardware import Machine
from sim.timeline import Timeline, dimension


def perfect_overlap(
    graph: Graph, machine: Machine, timeline: Timeline | None = None
) -> pd.DataFrame:
    """Say what the step would gain if the communication of a dimension were hidden perfectly.

    A row for each dimension and one for "all": dimension, ``step_s`` and ``gain_s``. Each comes
    from a second simulation, in which that communication takes no time and slows no kernel. So the
    gain includes the exposed time, what kernels lose to communication, and what other ranks wait
    for because of either. It is the most that overlap could gain: ops that depend on the data still
    wait for the peers.
    """
    before = simulate(graph, machine).seconds if timeline is None else timeline.seconds
    of_work = np.array([dimension(work) for work in graph.works], object)[graph.work]
    names = sorted({*of_work.tolist()} - {""})
    rows = []
    for name in [*names, *(["all"] if len(names) > 1 else [])]:
        ops = (of_work != "") if name == "all" else (of_work == name)
        step = simulate(*applied(graph, machine, Edit("work", ops, 0.0))).seconds
        rows.append((name, step, before - step))
    return pd.DataFrame(rows, columns=["dimension", "step_s", "gain_s"])
