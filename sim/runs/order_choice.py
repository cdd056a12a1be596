"""Which order a searched schedule takes in a recipe: the one whose simulated step is shortest.

A search times its orders with stages and messages by themselves. What they cost each other, and
what follows the last step of a rank, only the simulated step tells. So the order that is best by
the search's timing is simulated, and those made by hand that are nearly as good. Perturbations are
left out, as nobody knows them when an order is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from schedules import Plan
from schedules.search.choice import length
from sim.analysis.steps import steady
from sim.builder.job import Job
from sim.engine import DeadlockError, simulate
from sim.graph import Graph
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.recipe.recipe import Recipe
from sim.runs.fold import Lanes
from sim.runs.kept import Kept, alike
from sim.runs.slowest import with_slowest
from sim.runs.stage_times import stage_seconds

MARGIN = 0.05
"""How much longer than the best an order may be, by the search's timing, to be simulated. In steps
of GPT 1.5B to 28.3B on A100 the two differ by 0.5 to 4.5 %, most where messages are many."""

Prepare = Callable[[Job], tuple[Lanes, Graph, Machine]]
"""Returns the lanes, the graph and the prices of a job on the recipe's cluster."""

_known = Kept[Plan](64)


def searched(recipe: Recipe, job: Job, cluster: Cluster, prepare: Prepare) -> Plan:
    """Return the order of a searched schedule; ``job`` has none. That of a like recipe is kept."""

    def find() -> Plan:
        return _searched(recipe, job, cluster, prepare)

    if job.parallelism.strategy:  # a file that may change
        return find()
    return _known.of((cluster, alike(job, "plan"), repr(recipe.simulation)), find)


def _searched(recipe: Recipe, job: Job, cluster: Cluster, prepare: Prepare) -> Plan:
    times = stage_seconds(job, cluster)
    first, *others = recipe.plans(times)
    given = (times["F"], times["I"], times["W"], times["p2p"])
    how = recipe.objective, job.policy.name
    most = length(first, given, *how) * (1 + MARGIN) if others else 0.0
    near = [first, *(plan for plan in others if length(plan, given, *how) <= most)]

    def step(plan: Plan) -> float:
        return _step(replace(job, plan=plan), recipe, cluster, prepare)

    return first if len(near) == 1 else min(near, key=step)


def _step(job: Job, recipe: Recipe, cluster: Cluster, prepare: Prepare) -> float:
    """Return the seconds of a step, which are infinite for an order that cannot run."""
    _, graph, machine = prepare(job)
    machine = with_slowest(job, cluster.gpu.spread, graph, machine)
    try:
        timeline = simulate(graph, machine, engine=recipe.simulation.engine)
    except DeadlockError:
        return math.inf
    found = steady(timeline, *recipe.ramps)
    return found.seconds / found.steps
