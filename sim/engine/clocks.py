"""The clock that a GPU holds while it computes: what its power allows, window by window.

Tensor cores at boost clock draw more than a board may. Its controller lowers the clock until the
mean power of a short window is the limit, and raises it while the GPU waits. Here a first timeline
at boost clock says how much power each window would take; from it follows the clock of each kernel,
and the kernels take their longer times in a second simulation.

Power is idle power, plus what arithmetic takes, plus what memory-bound kernels take;
:mod:`sim.machine.power` says what is measured of this and what is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.graph import Bools, Compute, Floats, Graph, Longs
from sim.machine.hardware import Limits, Machine
from sim.machine.power import clock
from sim.timeline import Timeline

SAMPLES = 8
"""Instants at which power is looked at, per window."""
MOST = 100_000
"""Such instants of a step; in a longer one, power is looked at in the middle of each kernel."""
DIGITS = 6
"""Digits of a clock that count, so that the last bit of a power does not decide a timeline."""


def throttled(timeline: Timeline, machine: Machine) -> Machine:
    """Return the machine whose kernels take what the clock of their moment makes of them.

    ``timeline`` is that of a step at boost clock on ``machine``. Kernels limited by memory keep
    their times. A step repeats itself: before its first kernel the last one ran. The machine
    itself comes back where nothing is slowed.
    """
    if machine.limits is None or machine.clocks is not None or not timeline.seconds:
        return machine
    graph = timeline.graph
    clocks = np.ones(len(graph))
    for _, own in kernels_by_rank(graph):
        clocks[own] = _factors(timeline, machine, own)
    return replace(machine, clocks=clocks) if (clocks != 1.0).any() else machine


def computing(graph: Graph) -> Bools:
    """Return a flag for each work of a graph: its seconds depend on the clock."""
    return np.array([isinstance(work, Compute) for work in graph.works], np.bool_)


def kernels_by_rank(graph: Graph) -> Iterator[tuple[int, Longs]]:
    """Yield each rank that has kernels, ascending, with its kernels in the order of the graph."""
    kernels = np.flatnonzero(computing(graph)[graph.work])
    order = kernels[np.argsort(graph.rank[kernels], kind="stable")]
    begins = np.flatnonzero(np.diff(graph.rank[order], prepend=-1))
    for own in np.split(order, begins[1:]) if len(order) else ():
        yield int(graph.rank[own[0]]), own


def _factors(timeline: Timeline, machine: Machine, own: Longs) -> Floats:
    """Return the factor on the seconds of each of one rank's kernels."""
    limits, tensor, traffic = machine.limits, machine.tensor, machine.traffic
    assert limits is not None
    assert tensor is not None
    assert traffic is not None
    work = timeline.graph.work[own]
    energy = np.stack([tensor[work], traffic[work]])
    if machine.factor is not None:
        energy *= machine.factor[own]  # what is slower takes its power for longer
    at = instants(timeline, limits, own)
    mean = means(timeline, machine, own, energy, at)
    clocks = np.interp(middles(timeline, own), at, clock(limits, *mean)).round(DIGITS)
    boost = seconds(machine, work, np.ones(1))
    longer: Floats = np.ones(len(boost))  # of what an edit lets take no time
    np.divide(seconds(machine, work, clocks), boost, out=longer, where=boost > 0)
    return longer


def seconds(machine: Machine, work: NDArray[np.integer], clocks: Floats) -> Floats:
    """Return the seconds of kernels that run alone at these clocks, shares of boost."""
    arithmetic, memory, fixed = (
        column[work] for column in (machine.arithmetic, machine.memory, machine.fixed)
    )
    out: Floats = np.maximum(arithmetic / clocks, memory) + fixed
    return out


def instants(timeline: Timeline, limits: Limits, own: Longs) -> Floats:
    """Return the instants of a step at which the power of one rank is looked at, in seconds."""
    count = max(int(np.ceil(timeline.seconds / limits.window * SAMPLES)), SAMPLES)
    if count <= MOST:
        return np.linspace(0.0, timeline.seconds, count + 1)
    return np.unique(middles(timeline, own))


def middles(timeline: Timeline, ops: Longs) -> Floats:
    """Return the seconds at which each of these ops is half done; its clock is that moment's."""
    middle: Floats = (timeline.start[ops] + timeline.end[ops]) / 2.0
    return middle


def means(timeline: Timeline, machine: Machine, own: Longs, energy: Floats, at: Floats) -> Floats:
    """Return means over the window before each instant ``at`` of a step at boost clock.

    ``own`` are the kernels of one rank, and ``energy`` what each takes, shape (kinds, kernels), in
    seconds of full power. The means have a row for the power of each kind, and a last one for the
    share of the window in which arithmetic runs.
    """
    assert machine.limits is not None
    start, end = timeline.start[own], timeline.end[own]
    window, tiny = machine.limits.window, np.finfo(np.float64).tiny
    busy = np.minimum(machine.arithmetic / np.maximum(machine.alone, tiny), 1.0)
    rates = np.vstack([energy / np.maximum(end - start, tiny), busy[timeline.graph.work[own]]])
    return _windows(start, end, rates, at, timeline.seconds, window)


def _windows(
    start: Floats, end: Floats, rates: Floats, at: Floats, step: float, window: float
) -> Floats:
    """Return the mean of each rate over the window before each instant, in steps that repeat.

    A rate, a row of ``rates``, is the sum over kernels of each one's from its ``start`` to its
    ``end``.
    """
    when = np.concatenate([start, end])
    order = np.argsort(when, kind="stable")
    when = when[order]
    out = np.zeros((len(rates), len(at)))
    for row in np.flatnonzero(rates.any(axis=1)).tolist():
        rate = rates[row]
        level = np.cumsum(np.concatenate([rate, -rate])[order])
        total = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(when))])
        out[row] = (_until(at, when, total, step) - _until(at - window, when, total, step)) / window
    return out


def _until(instant: Floats, when: Floats, total: Floats, step: float) -> Floats:
    """Return what has come together until each instant, ``total`` of which each step brings."""
    whole = np.floor(instant / step)
    inside: Floats = np.interp(instant - whole * step, when, total)
    before: Floats = whole * total[-1] + inside
    return before
