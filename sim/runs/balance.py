"""How many layers each stage should hold so that the slowest rank of the pipeline is fastest.

The first stage has the embedding besides its layers, and the last one the head. So stages of equal
layers are not equally fast, and the slowest rank sets the pace of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import NamedTuple

import schedules
from schedules import Plan, flat
from sim.builder.job import Job, without_plan
from sim.machine.cluster import Cluster
from sim.recipe.recipe import Recipe, ScheduleSection
from sim.runs import contiguous
from sim.runs.kept import Kept, alike
from sim.runs.run import load
from sim.runs.shared import cluster_of
from sim.runs.stage_times import stage_timelines


class Cost(NamedTuple):
    """The seconds of one microbatch, forward and backward, in a stage: linear in its layers."""

    fixed: float
    layer: float

    def seconds(self, layers: int) -> float:
        """Return the seconds of a stage with so many layers.

        >>> Cost(fixed=2.0, layer=3.0).seconds(4)
        14.0
        """
        return self.fixed + self.layer * layers


def balance(recipe: Recipe | str | Path) -> list[int]:
    """Find the layers of each stage, first to last, with which the slowest rank is fastest.

    What counts is how long a rank takes for one microbatch in all its stages, each run by itself on
    the machine. Every stage gets at least one layer. Raises InputError for a recipe that cannot
    run.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load(recipe)
    cluster = cluster_of(recipe)
    job = replace(without_plan(recipe), plan=_plan(recipe))
    ranks, kinds = stage_ranks(job.plan), job.model.kinds
    if len(kinds) == 1:
        return split(job.model.layers, costs(job, cluster), ranks)
    each = layer_seconds(job, cluster)
    fixed = [cost.fixed for cost in costs(job, cluster)]
    seconds = [each[job.model.like(layer)] for layer in range(job.model.layers)]
    return contiguous.split(seconds, fixed, ranks, ADDED)


def _plan(recipe: Recipe) -> Plan:
    """Return a plan with the recipe's stages, which need no times; a searched one is short."""
    name, pp = recipe.schedule.name, recipe.parallelism.pp
    if not schedules.takes_times(name):
        return recipe.plan({})
    few = min(recipe.planned, 2 * pp)
    return schedules.load(name)(pp, few, **recipe.options, **dict.fromkeys("FIW", 1.0))


ADDED = 0.01
"""By what share a stage's seconds may differ from the sum of those of its layers: splits whose
slowest ranks differ by less are equally good."""
OF_PIPELINES = {"p2p": "auto", "overlap_p2p": None}
"""In place of how stages exchange messages, which does not matter to one."""
_known = Kept[float](256)


def stage_ranks(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the ranks that run each stage: one, or two in a pipeline of two directions.

    >>> from schedules import load
    >>> stage_ranks(load("dualpipe")(2, 4))
    {0: (0, 1), 1: (0, 1)}
    """
    mine = [{step.stage for step in steps} for steps in flat(plan)]
    stages = sorted(set().union(*mine))
    return {s: tuple(rank for rank, own in enumerate(mine) if s in own) for s in stages}


def layer_seconds(job: Job, cluster: Cluster) -> dict[int, float]:
    """Return the seconds of a layer of each kind, forward and backward, by the kind's first layer.

    They are what such a layer adds to a stage with one of the commonest kind.
    """
    common = _common(job)
    one = _seconds(job, cluster, [common], False, False)
    return {
        kind: _seconds(job, cluster, [common, kind], False, False) - one
        for kind, _ in job.model.kinds
    }


def _common(job: Job) -> int:
    """Return the first layer of the commonest kind."""
    return max(job.model.kinds, key=lambda kind: kind[1])[0]


def costs(job: Job, cluster: Cluster) -> list[Cost]:
    """Return the cost of each stage of a job, from runs with one and two layers of a kind."""
    ends = [(s == 0, s == job.stages - 1) for s in range(job.stages)]
    known = {end: _cost(job, cluster, *end) for end in dict.fromkeys(ends)}
    return [known[end] for end in ends]


def split(layers: int, costs: Sequence[Cost], ranks: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the layers of each stage, at least one, that make the slowest rank fastest.

    ``ranks`` says which ranks run each stage; if there are two, each runs it for half of the
    microbatches. Each layer in turn goes to the rank that is fastest with it. This is exact because
    more layers never make a rank faster. On that rank it goes to the stage with the fewest layers,
    and among equals to the one nearest to the middle of the pipeline, for which the ends wait
    least.

    >>> split(8, [Cost(1, 4), Cost(0, 4), Cost(6, 4)], {0: [0], 1: [1], 2: [2]})
    [3, 3, 2]
    """
    counts = [1] * len(costs)
    mates = [[t for t in ranks if ranks[t] == ranks[s]] for s in range(len(costs))]

    def after(s: int) -> tuple[float, float, int]:
        busy = fsum(costs[t].seconds(counts[t] + (t == s)) for t in mates[s])
        return busy / len(ranks[s]), costs[s].seconds(counts[s] + 1), abs(2 * s + 1 - len(costs))

    for _ in range(layers - len(costs)):
        counts[min(range(len(costs)), key=after)] += 1
    return counts


def _cost(job: Job, cluster: Cluster, first: bool, last: bool) -> Cost:
    one, two = (_seconds(job, cluster, [_common(job)] * n, first, last) for n in (1, 2))
    return Cost(2 * one - two, two - one)


def _seconds(job: Job, cluster: Cluster, layers: list[int], first: bool, last: bool) -> float:
    """Return the seconds of a stage's forward and backward, in halves if the schedule splits it.

    They are kept for other schedules of the same job.
    """
    kinds = "FB" if any(step.kind == "B" for steps in flat(job.plan) for step in steps) else "FIW"

    def find() -> float:
        ran = stage_timelines(job, cluster, layers, first, last, kinds)
        return fsum(ran[kind].seconds for kind in kinds)

    if job.parallelism.strategy:  # a file that may change
        return find()
    parallelism = job.parallelism.model_copy(update=OF_PIPELINES)
    same = replace(job, parallelism=parallelism, schedule=ScheduleSection())
    return _known.of((cluster, alike(same, "plan"), tuple(layers), first, last, kinds), find)
