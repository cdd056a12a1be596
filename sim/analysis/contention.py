"""The cost of sharing a GPU: the seconds by which kernels run longer than they would alone."""

from __future__ import annotations

import numpy as np

from sim.analysis.activity import COMPUTE, activities
from sim.analysis.path import causes
from sim.late import pd
from sim.machine.hardware import Machine
from sim.timeline import Timeline


def contention(timeline: Timeline, machine: Machine) -> pd.DataFrame:
    """Say how much longer kernels run than alone, because others share their GPU.

    A row per rank and kind of kernel: kernels, ``alone_s``, ``ran_s`` and ``lost_s``, their
    difference.

    Communication beside a kernel takes SMs and memory bandwidth from it, as does a kernel on
    another compute stream. ``machine`` is the one the timeline was simulated on.
    """
    graph, kinds = timeline.graph, activities(timeline.graph)
    kernel = (kinds.code == kinds.names.index(COMPUTE)) & (np.diff(graph.part_start) == 0)
    op = np.flatnonzero(kernel)
    alone, ran = machine.alone[graph.work[op]], timeline.end[op] - timeline.start[op]
    frame = pd.DataFrame(
        {
            "rank": graph.rank[op],
            "kind": np.array(causes(graph), object)[graph.work[op]],
            "kernels": 1,
            "alone_s": alone,
            "ran_s": ran,
            "lost_s": np.where(ran - alone > 1e-9 * alone, ran - alone, 0.0),  # else rounding
        }
    )
    return frame.groupby(["rank", "kind"], sort=True).sum().reset_index()
