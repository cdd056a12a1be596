"""How much of the memory bandwidth does communication take while a kernel runs?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats, owners
from sim.machine.hardware import Machine
from sim.timeline import Timeline


def taken(timeline: Timeline, machine: Machine, ops: NDArray[np.integer]) -> Floats:
    """Return the mean share of the memory bandwidth that is taken beside each op, shape (ops,).

    What is taken counts less by the share of the SMs that the communication holds, as that much
    less of the op runs meanwhile. Data is taken to move in the last seconds before the end of a
    communication, as many as it needs alone.
    """
    graph = timeline.graph
    member, work = owners(graph.part_start), graph.part_work[graph.part]
    some = machine.hbm[work] > 0.0
    member, work = member[some], work[some]
    end = timeline.end[member]
    start = np.maximum(timeline.start[member], end - machine.transfer[work])
    share = machine.hbm[work] * (1.0 - machine.sms[work] / machine.gpu_sms)
    out = np.zeros(len(ops))
    for rank in np.unique(graph.rank[ops]).tolist():
        here = graph.rank[member] == rank
        mine = np.flatnonzero(graph.rank[ops] == rank)
        until = _until(start[here], end[here], share[here])
        first, last = timeline.start[ops[mine]], timeline.end[ops[mine]]
        long = np.maximum(last - first, np.finfo(np.float64).tiny)
        out[mine] = (np.interp(last, *until) - np.interp(first, *until)) / long
    return np.clip(out, 0.0, 1.0)


def _until(start: Floats, end: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Return instants, and what has been taken until each, in seconds of the whole bandwidth."""
    when = np.concatenate([[0.0], start, end])
    order = np.argsort(when, kind="stable")
    level = np.cumsum(np.concatenate([[0.0], share, -share])[order])
    when = when[order]
    return when, np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(when))])
