"""A lower bound on the time of a layout's step, without a simulation.

It is the longest of some paths through the step, each with kernels at boost clock that nothing
slows down, and with collectives on an empty network:

- a rank's own steps, one after the other (:mod:`sim.search.stages`), behind the forwards, and
  backwards, that bring it its first input, and before those that lead to the end of the step;
- then the end of the step on a rank: the reduction of the gradients of the stage that is last, the
  update, and the gathers of updated parameters;
- what replicas exchange on one communicator, one collective after the other.

Clocks, shared SMs, memory bandwidth and links, hosts, late ranks, and order on other streams only
make a step longer. So no simulated step is shorter. Where a step may overlap with the next, or
perturbations may make kernels faster, there is no bound: it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.builder.job import Job
from sim.recipe.recipe import Recipe
from sim.runs.summary import between
from sim.search.plans import KINDS, Lines
from sim.search.prices import Prices
from sim.search.replicas import Replicas
from sim.search.sketch import Sketch
from sim.search.stages import Cost, alike

Floats = NDArray[np.float64]
SURE = 1.0 - 1e-9
"""The factor on a bound that outweighs the rounding of its sums and of a simulation's."""


class Stages(NamedTuple):
    """The costs of all stages of a job, and seconds of a message to the next one."""

    costs: Sequence[Cost]
    hops: Sequence[float]  # from stage s to s + 1

    def seconds(self) -> Floats:
        """Return the seconds of each kind of step of each stage, shape (kinds, stages)."""
        return np.array([[of.seconds[kind] for of in self.costs] for kind in KINDS])


def bound(sketch: Sketch) -> float:
    """Return seconds that no simulation of this layout's step stays below; see above."""
    recipe, job, order, of = sketch.recipe, sketch.job, sketch.order, sketch.prices
    if _unsure(recipe):
        return 0.0
    if order is None:
        return SURE * _any_order(sketch) + between(recipe)
    stages, held = Stages(sketch.costs, _hops(job, of, order)), alike(sketch.looks, job.held)
    replicas = Replicas(job, of, order.on, held, sketch.looks)
    return SURE * _ordered(order, stages, replicas, job.schedule.pair == "shared") + between(recipe)


def loosest(sketch: Sketch) -> float:
    """Return seconds below the bound of every order of the pipeline, in as many stages or more."""
    if _unsure(sketch.recipe):
        return 0.0
    return SURE * _any_order(sketch)


def _unsure(recipe: Recipe) -> bool:
    """Return whether steps overlap, or perturbations may make something faster."""
    return not recipe.flushed or (recipe.simulation.steps or 1) > 1 or bool(recipe.perturbations)


def _any_order(of: Sketch) -> float:
    """Return what the mean rank computes: no order makes the busiest one faster."""
    each = [one.seconds["F"] + _backward(one) for one in of.costs]
    return fsum(each) * of.recipe.microbatches / of.job.mesh.pp


def _backward(of: Cost) -> float:
    return min(of.seconds["B"], of.seconds["I"] + of.seconds["W"])


def _hops(job: Job, of: Prices, order: Lines) -> list[float]:
    """Return the seconds of a message between consecutive stages; 0 on one rank."""
    line, owner, size = job.ranks[0, 0, 0], order.owner, job.boundary_bytes
    out = []
    twice = sum(map(len, order.on)) > len(owner)  # a pipeline of two directions
    for a, b in pairwise(owner):
        ends = (int(line[a]), int(line[b]))
        out.append(0.0 if a == b or twice else of.collective("p2p", size, ends, "auto"))
    return out


def _ordered(order: Lines, stages: Stages, replicas: Replicas, shared: bool) -> float:
    found = 0.0
    tails = [replicas.tail(q) for q in range(len(order.on))]
    begin = min(replicas.begin(q) for q in range(len(order.on)))
    last = min(tails[q] for q, mine in enumerate(order.on) if 0 in mine)
    way = Way.of(stages, order)
    for q in range(len(order.on)):
        behind = _behind(q, order, stages, way, shared)
        found = max(found, begin + _kernels(q, order, way, behind, (tails[q], last)))
        found = max(found, begin + _reduced(q, order, behind, replicas) + tails[q])
        found = max(found, replicas.exchanged(q, order) + tails[q])
    return found


class Way(NamedTuple):
    """Seconds from the begin of the step to each stage's steps, and from their ends to its end."""

    before: Floats  # shape (kinds, stages)
    after: Floats

    @classmethod
    def of(cls, stages: Stages, order: Lines) -> Way:
        """Add up forwards down the stages, and backwards up again; weights follow at any time."""
        seconds, hops = stages.seconds(), np.array(stages.hops)
        up = _backwards(seconds, order)
        down = _sum_before(seconds[0] + np.append(hops, 0.0))
        turn = down[-1] + seconds[0][-1]
        back = _sum_before((up + np.append(0.0, hops))[::-1])[::-1]
        into, rest = turn + back, back[0] + up[0]
        weights = np.zeros_like(down)
        return cls(
            np.array([down, into, into, into + seconds[2]]),
            np.array(
                [turn - down - seconds[0] + rest, rest - back - up, rest - back - up, weights]
            ),
        )


def _backwards(seconds: Floats, order: Lines) -> Floats:
    """Return the seconds from the gradient that a stage gets to the one that it passes on."""
    kinds = set(np.concatenate(order.kind).tolist())
    whole, halves = KINDS.index("B") in kinds, KINDS.index("I") in kinds
    both: Floats = np.minimum(seconds[1], seconds[2])
    return both if whole and halves else seconds[1] if whole else seconds[2]


def _sum_before(values: Floats) -> Floats:
    return np.append(0.0, np.cumsum(values)[:-1])


class Behind(NamedTuple):
    """Of each step of a rank: the longest path to its end, and its own seconds.

    The members of a ``pair`` may end before the pair does.
    """

    ends: Floats
    own: Floats
    pair: NDArray[np.bool_]


def _behind(q: int, order: Lines, stages: Stages, way: Way, shared: bool) -> Behind:
    stage, kind = order.stage[q], order.kind[q]
    first = order.paired[q] & shared
    pair = first | np.append(False, first[:-1])
    own = stages.seconds()[kind, stage]
    for k in np.flatnonzero(first).tolist():
        own[k : k + 2] = 0.0, _pair(stages.costs[int(stage[k])], stages.costs[int(stage[k + 1])])
    until = np.cumsum(own)
    return Behind(np.maximum.accumulate(way.before[kind, stage] - (until - own)) + until, own, pair)


def _pair(forward: Cost, backward: Cost) -> float:
    """Return the seconds of a forward and a backward side by side.

    Two kernels that share a GPU are each half as fast, but for what every launch costs.
    """
    both = forward.busy["F"] + backward.busy["B"]
    return max(forward.seconds["F"], backward.seconds["B"], both)


def _kernels(q: int, order: Lines, way: Way, behind: Behind, tails: tuple[float, float]) -> float:
    """Return the longest path through the steps of a rank: in at one, out at the same or later."""
    after = way.after[order.kind[q], order.stage[q]] + tails[1]
    out = np.where(behind.pair, 0.0, behind.ends + after)
    return float(max(out.max(), behind.ends[-1] + tails[0]))


def _reduced(q: int, order: Lines, behind: Behind, replicas: Replicas) -> float:
    """Return the seconds to the end of the reductions that run beside the last gradients."""
    out = 0.0
    if not replicas.beside:
        return out
    for stage in order.on[q]:
        made = (order.stage[q] == stage) & np.isin(order.kind[q], (1, 3))
        k = int(np.flatnonzero(made)[-1])
        if not behind.pair[k]:
            out = max(out, behind.ends[k] - behind.own[k] + replicas.reduction(q, stage))
    return out
