"""Which clock would a kernel have under other limits of power? Found without a second simulation.

The windows are those of the step at boost clock, which no limit changes; only the power in them
does, and what of it the GPU may draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.clocks import DIGITS, means
from sim.graph import Compute, Floats
from sim.machine.hardware import Machine
from sim.machine.power import clock
from sim.timeline import Timeline


def reclocked(boost: Timeline, machines: Sequence[Machine], ops: NDArray[np.integer]) -> Floats:
    """Return the clock of each op, a share of boost, shape (machines, ops).

    ``boost`` is the step at boost clock on the first machine. The others have other limits, or
    kernels that take another power; what they say of seconds does not count.
    """
    graph, kinds = boost.graph, _kinds(machines)
    computes = np.array([isinstance(work, Compute) for work in graph.works], np.bool_)
    mine = ops[computes[graph.work[ops]]]
    ranks = np.unique(graph.rank[mine]).tolist()
    kernels = np.flatnonzero(computes[graph.work])
    found = [_means(boost, machines[0], kernels[graph.rank[kernels] == r], kinds) for r in ranks]
    out = np.ones((len(machines), len(ops)))
    if not found:
        return out
    clocks = _clocks(machines, kinds, np.concatenate([mean for _, mean in found], axis=1))
    middle = (boost.start[ops] + boost.end[ops]) / 2.0
    ends = np.cumsum([len(at) for at, _ in found])[:-1]
    parts = np.split(clocks, ends, axis=1)
    for rank, (at, _), of_rank in zip(ranks, found, parts, strict=True):
        here = np.flatnonzero((graph.rank[ops] == rank) & computes[graph.work[ops]])
        out[:, here] = [np.interp(middle[here], at, one) for one in of_rank]
    return out


class Kinds(NamedTuple):
    """Works whose power changes alike from machine to machine."""

    of_work: NDArray[np.intp]  # shape (works,)
    power: Floats  # of arithmetic and of memory traffic, over the first's: (kinds, machines, 2)


def _kinds(machines: Sequence[Machine]) -> Kinds:
    tiny = np.finfo(np.float64).tiny
    pairs = [((m.tensor, m.arithmetic), (m.traffic, m.memory)) for m in machines]
    power = np.array([[_column(e) / np.maximum(s, tiny) for e, s in two] for two in pairs])
    power /= np.where(power[0] > 0.0, power[0], 1.0)
    flat = power.round(DIGITS).reshape(2 * len(machines), -1).T
    rows, of_work = np.unique(flat, axis=0, return_inverse=True)
    return Kinds(of_work.ravel(), rows.reshape(len(rows), len(machines), 2))


def _column(of: Floats | None) -> Floats:
    assert of is not None
    return of


def _means(
    boost: Timeline, machine: Machine, own: NDArray[np.intp], kinds: Kinds
) -> tuple[Floats, Floats]:
    """Return instants, and what one rank's kernels take: arithmetic and traffic of each kind, busy.

    The means have the shape (2 kinds + 1, instants).
    """
    work = boost.graph.work[own]
    alike = kinds.of_work[work] == np.arange(len(kinds.power))[:, None]
    energy = (_column(machine.tensor)[work] * alike, _column(machine.traffic)[work] * alike)
    return means(boost, machine, own, np.vstack(energy))


def _clocks(machines: Sequence[Machine], kinds: Kinds, mean: Floats) -> Floats:
    """Return the clock at each instant on each machine, shape (machines, instants)."""
    parts = mean[:-1].reshape(2, len(kinds.power), -1)
    out = []
    for k, machine in enumerate(machines):
        assert machine.limits is not None
        tensor, traffic = np.einsum("kp,pkt->pt", kinds.power[:, k], parts)
        out.append(clock(machine.limits, tensor, traffic, mean[-1]))
    return np.array(out)
