"""Which clock would a kernel have under other limits of power? Found without a second simulation.

The windows are those of the step at boost clock, which no limit changes; only the power in them
does, and what of it the GPU may draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.clocks import DIGITS, computing, instants, kernels_by_rank, means, middles
from sim.graph import Floats, Longs
from sim.machine.hardware import Machine
from sim.machine.power import clock
from sim.timeline import Timeline


def reclocked(boost: Timeline, machines: Sequence[Machine], ops: Longs) -> Floats:
    """Return the clock of each op, a share of boost, shape (machines, ops).

    ``boost`` is the step at boost clock on the first machine. The others have other limits, or
    kernels that take another power; what they say of seconds does not count. Power is looked at
    only at the instants on both sides of an op's middle.
    """
    limits, graph, kinds = machines[0].limits, boost.graph, _kinds(machines)
    assert limits is not None
    out, middle, rank = np.ones((len(machines), len(ops))), middles(boost, ops), graph.rank[ops]
    computes = computing(graph)[graph.work[ops]]
    found = []
    for r, own in kernels_by_rank(graph):
        here = np.flatnonzero((rank == r) & computes)
        if len(here):
            some = _beside(instants(boost, limits, own), middle[here])
            found.append((here, some, _means(boost, machines[0], own, kinds, some)))
    if not found:
        return out
    clocks = _clocks(machines, kinds, np.concatenate([mean for *_, mean in found], axis=1))
    begin = 0
    for here, some, _ in found:
        of_rank = clocks[:, begin : begin + len(some)]
        out[:, here] = [np.interp(middle[here], some, one) for one in of_rank]
        begin += len(some)
    return out


def _beside(at: Floats, middle: Floats) -> Floats:
    """Return those of the instants ``at``, ascending, that are neighbours of some ``middle``."""
    near = np.zeros(len(at), np.bool_)
    after = np.searchsorted(at, middle, side="right")
    near[np.minimum(after, len(at) - 1)] = near[np.maximum(after - 1, 0)] = True
    return at[near]


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


def _means(boost: Timeline, machine: Machine, own: Longs, kinds: Kinds, at: Floats) -> Floats:
    """Return what one rank's kernels take before instants: arithmetic, traffic of each kind, busy.

    The shape is (2 kinds + 1, instants).
    """
    work = boost.graph.work[own]
    alike = kinds.of_work[work] == np.arange(len(kinds.power))[:, None]
    energy = (_column(machine.tensor)[work] * alike, _column(machine.traffic)[work] * alike)
    return means(boost, machine, own, np.vstack(energy), at)


def _clocks(machines: Sequence[Machine], kinds: Kinds, mean: Floats) -> Floats:
    """Return the clock at each instant on each machine, shape (machines, instants)."""
    parts = mean[:-1].reshape(2, len(kinds.power), -1)
    out = []
    for k, machine in enumerate(machines):
        assert machine.limits is not None
        tensor, traffic = np.einsum("kp,pkt->pt", kinds.power[:, k], parts)
        out.append(clock(machine.limits, tensor, traffic, mean[-1]))
    return np.array(out)
