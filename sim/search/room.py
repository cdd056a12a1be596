"""The least memory that a layout can need, and whether it fits: without a simulation if possible.

First what can be added up at once: what a rank always holds, and what the microbatches keep that
are between their forwards and backwards, at the fullest moment of its order. Left out are gathered
parameters and messages. What that leaves is examined as ``traincast check`` does.
"""

from __future__ import annotations

from math import fsum

import numpy as np

from schedules import Plan, Step
from sim.builder.job import Job, without_plan
from sim.builder.persistent import persistent
from sim.machine.cluster import Cluster
from sim.memory.runtime import outside
from sim.memory.untimed import untimed
from sim.recipe.recipe import Recipe
from sim.runs.fold import candidates
from sim.runs.run import build, job_of
from sim.runs.untimed_figures import memory
from sim.search.plans import KINDS, Lines, lines
from sim.search.stages import Cost, cost, prices

FREED = np.array([1.0, -1.0, -0.5, -0.5])
"""The share of what a microbatch keeps that a step adds, by kind (KINDS)."""
SURE = 1.0 - 1e-9


def least(recipe: Recipe, cluster: Cluster) -> float:
    """Return bytes that the fullest GPU of a layout holds at least, the runtime's own included."""
    job, order = without_plan(recipe), lines(recipe)
    besides = outside(job.mesh, cluster.gpu.costs.get("runtime"))
    if order is None or not recipe.flushed:
        return besides
    job = Job(job.model, job.parallelism, job.training, job.schedule, order.skeleton)
    costs = [cost(job, prices(cluster), stage) for stage in range(job.stages)]
    always = [fsum(persistent(job, mine, q).values()) for q, mine in enumerate(order.on)]
    return SURE * max(of + _kept(q, order, costs) for q, of in enumerate(always)) + besides


def always(recipe: Recipe, cluster: Cluster) -> float:
    """Return bytes that a GPU holds throughout in the mean over the pipeline, with the runtime's.

    They are equal for all orders of the pipeline, so that a whole group of layouts is told by one.
    """
    job = without_plan(recipe)
    mine = [(stage,) for stage in range(job.stages)]
    plan: Plan = [[Step(of[0], "F", 0)] for of in mine]
    job = Job(job.model, job.parallelism, job.training, job.schedule, plan)
    held = fsum(fsum(persistent(job, of).values()) for of in mine) / job.mesh.pp
    return SURE * held + outside(job.mesh, cluster.gpu.costs.get("runtime"))


def _kept(q: int, order: Lines, costs: list[Cost]) -> float:
    """Return the most bytes that a rank's microbatches hold at the begin of a step or inside it."""
    stage, kind = order.stage[q], order.kind[q]
    kept = np.array([of.kept for of in costs])[stage] * FREED[kind]
    most = np.array([[of.most[k] for of in costs] for k in KINDS])[kind, stage]
    first = order.paired[q]
    most[first | np.append(False, first[:-1])] = 0.0  # the members of a pair may take turns
    kept[first] = np.minimum(kept[first], 0.0)
    return float(np.max(np.cumsum(kept) - kept + most))


def exact(recipe: Recipe, cluster: Cluster) -> float | None:
    """Return the bytes of the fullest GPU, or None where only a simulated step can tell.

    Raises InputError for an order that cannot run.
    """
    job = job_of(recipe, cluster)
    timeline = untimed(build(job, next(candidates(job)), sends=False))
    if timeline is None:
        return None
    found = memory(recipe, job, cluster, timeline)
    return max(float(entry["device_bytes"]) for entry in found)
