"""In which interval does the step time lie, given what is not known of the prices?

Three things are not known: how far the price of each kernel is off (:mod:`sim.machine.residuals`),
where in its range each assumed value lies (:mod:`sim.machine.assumed`), and so which clock a GPU
has. They are drawn at random, and the step follows to first order from the seconds that each work
has on the critical path. That is exact while no other path becomes critical, and sharing and the
clocks stay as they are. What is assumed is the median: the true value is as likely below it as
above, and on either side anywhere up to the end of the range. The step changes in proportion
between it and either end. Nothing is simulated again but the ends of the host's prices
(:mod:`sim.whatif.host_ends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from sim.analysis.critical_path import CriticalPath
from sim.engine.clocks import seconds
from sim.engine.reclocked import reclocked
from sim.graph import Floats, Work
from sim.machine.assumed import ranges
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.residuals import Residual, alike, borrowed, family, residuals
from sim.machine.variants import ends
from sim.timeline import Timeline
from sim.whatif.host_ends import host_moves
from sim.whatif.taken import taken

DRAWS = 1000
WITHIN = 0.1, 0.9
"""The quantiles between which 80 % of the draws lie."""


class Interval(NamedTuple):
    """Where 80 % of step times lie, and what each assumed value does to the step, in seconds."""

    low: float
    high: float
    moves: Mapping[str, tuple[float, float]]
    """By assumed value: the change of the step with it at the low and at the high end."""


def interval(
    path: CriticalPath,
    machine: Machine,
    boost: Timeline,
    cluster: Cluster,
    seed: int,
    host: bool = False,
) -> Interval:
    """Return the interval of a step with this critical path, the same for the same seed.

    ``boost`` is the step at boost clock: the timeline itself where no power limits it. ``host``
    says whether the host has built-in prices. Ends have six digits, so that the last bit of an
    exponential does not decide them. The step is inside, also where ranges go mostly to one side.
    """
    graph, rng = boost.graph, np.random.default_rng(seed)
    took: Floats = np.bincount(graph.work[[*path.ops]], path.took, len(graph.works)).astype(float)
    there = np.flatnonzero(took)
    found = moves(path, machine, boost, cluster)
    if host:
        found |= host_moves(path, machine, boost)
    drawn = draw([graph.works[w] for w in there.tolist()], cluster, [*found], rng)
    step = fsum(path.seconds.values())
    low, high = np.quantile(step + changes(took[there], found, drawn), WITHIN)
    return Interval(float(f"{min(low, step):.6g}"), float(f"{max(high, step):.6g}"), found)


class Draws(NamedTuple):
    """What might be: factors on the seconds of works, (draws, works), and assumed values."""

    factors: Floats
    values: Mapping[str, Floats]  # of shape (draws,)


def draw(
    works: Sequence[Work],
    cluster: Cluster,
    names: Sequence[str],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> Draws:
    """Return draws of the errors of works and of these assumed values.

    Works of one family share one error, and those that are alike another.
    """
    families, shapes = [family(work, cluster) for work in works], [alike(work) for work in works]
    known, others = residuals(), borrowed(cluster)
    own = [known[name] if name in known else Residual(0.0, 0.0) for name in families]
    of_family = np.array([one.of_family(n in others) for one, n in zip(own, families, strict=True)])
    of_shape = np.array([one.shape for one in own])
    log = of_family * _normal(families, rng, draws) + of_shape * _normal(shapes, rng, draws)
    values = {}
    for name in names:
        of = ranges()[name]
        values[name] = np.interp(
            rng.uniform(size=draws), (0.0, 0.5, 1.0), (of.low, of.value, of.high)
        )
    return Draws(np.exp(log), values)


def _normal(of: Sequence[object], rng: np.random.Generator, draws: int) -> Floats:
    """Return a normal number for each draw and entry, equal entries sharing theirs."""
    place = {one: k for k, one in enumerate(dict.fromkeys(of))}
    return rng.standard_normal((draws, len(place)))[:, [place[one] for one in of]]


def changes(took: Floats, found: Mapping[str, tuple[float, float]], drawn: Draws) -> Floats:
    """Return by how many seconds the step changes in each draw, to first order.

    ``took`` are the seconds of each work on the critical path, ``found`` those of :func:`moves`.
    """
    out: Floats = ((drawn.factors - 1.0) * took).sum(axis=1)
    for name, (low, high) in found.items():
        of = ranges()[name]
        out += np.interp(drawn.values[name], (of.low, of.value, of.high), (low, 0.0, high))
    return out


def moves(
    path: CriticalPath, machine: Machine, boost: Timeline, cluster: Cluster
) -> dict[str, tuple[float, float]]:
    """Return by how many seconds the step changes with each assumed value at both its ends."""
    graph, found = boost.graph, ends(machine, cluster.gpu, boost.graph.works)
    took, ops = np.array(path.took), np.array(path.ops, np.int64)
    machines = [machine, *(other for of in found for other in (of.low, of.high))]
    if machine.limits is None:
        clocks = np.ones((len(machines), len(ops)))
    else:
        clocks = reclocked(boost, machines, ops)
    contention = np.array([[one.contention - machine.contention] for one in machines])
    if contention.any():
        clocks /= 1.0 + contention * taken(boost, machine, ops)
    usual, *others = (
        seconds(one, graph.work[ops], clock) for one, clock in zip(machines, clocks, strict=True)
    )
    longer = [np.divide(of, usual, out=np.ones_like(of), where=usual > 0) for of in others]
    change = [float((took * (of - 1.0)).sum()) for of in longer]
    return {of.name: (change[2 * k], change[2 * k + 1]) for k, of in enumerate(found)}
