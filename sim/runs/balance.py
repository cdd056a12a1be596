"""How many layers each stage should hold so that the slowest rank of the pipeline is fastest.

The first stage has the embedding besides its layers, and the last one the head. So stages of equal
layers are not equally fast, and the slowest rank sets the pace of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

from schedules import Plan, flat
from schedules.input_error import InputError
from sim.builder.job import Job
from sim.keys.refusals import show
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.recipe.recipe import Recipe
from sim.runs.run import job_of, load
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
    for key in ("dense_layers", "pattern", "feed_forward"):
        if said := getattr(recipe.model, key):
            raise InputError(
                f"model.{key} = {show(said)} makes layers differ, and these "
                "cannot be balanced yet; write schedule.layers_per_stage"
            )
    cluster = clusters.load(recipe.cluster.topology, recipe.cluster.gpus)
    job = job_of(recipe, cluster)
    return split(sum(job.layers_per_stage), costs(job, cluster), stage_ranks(job.plan))


def stage_ranks(plan: Plan) -> dict[int, tuple[int, ...]]:
    """Return the ranks that run each stage: one, or two in a pipeline of two directions.

    >>> from schedules import load
    >>> stage_ranks(load("dualpipe")(2, 4))
    {0: (0, 1), 1: (0, 1)}
    """
    mine = [{step.stage for step in steps} for steps in flat(plan)]
    stages = sorted(set().union(*mine))
    return {s: tuple(rank for rank, own in enumerate(mine) if s in own) for s in stages}


def costs(job: Job, cluster: Cluster) -> list[Cost]:
    """Return the cost of each stage of a job, from runs with one layer and with two."""
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
    one, two = (_seconds(job, cluster, range(n), first, last) for n in (1, 2))
    return Cost(2 * one - two, two - one)


def _seconds(job: Job, cluster: Cluster, layers: range, first: bool, last: bool) -> float:
    """Return the seconds of a stage's forward and backward, in halves if the schedule splits it."""
    ran = stage_timelines(job, cluster, layers, first, last)
    whole = any(step.kind == "B" for steps in flat(job.plan) for step in steps)
    return fsum(ran[kind].seconds for kind in ("FB" if whole else "FIW"))
