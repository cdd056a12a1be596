"""The least memory that a layout can need, and whether it fits: without a simulation if possible.

First what can be added up at once: what a rank always holds, and what the microbatches keep that
are between their forwards and backwards, at the fullest moment of its order. Left out are gathered
parameters and messages. What that leaves is examined as ``traincast check`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

import numpy as np

from schedules import Plan, Step
from sim.builder.job import Job
from sim.builder.persistent import persistent
from sim.machine.cluster import Cluster
from sim.memory.runtime import outside
from sim.memory.untimed import untimed
from sim.recipe.recipe import Recipe
from sim.runs.fold import candidates
from sim.runs.run import build, job_of
from sim.runs.untimed_figures import memory
from sim.search.bound import SURE
from sim.search.plans import KINDS, Lines
from sim.search.sketch import Sketch
from sim.search.stages import Cost, alike

FREED = np.array([1.0, -1.0, -0.5, -0.5])
"""The share of what a microbatch keeps that a step adds, by kind (KINDS)."""


def least(sketch: Sketch) -> float:
    """Return bytes that the fullest GPU of a layout holds at least, the runtime's own included."""
    job, order = sketch.job, sketch.order
    if order is None or not sketch.recipe.flushed:
        return always(sketch)
    looks = [tuple(sketch.looks[stage] for stage in mine) for mine in order.on]
    held = alike(looks, lambda q: fsum(persistent(job, order.on[q], q).values()))
    kept = [_kept(q, order, sketch.costs) for q in range(len(order.on))]
    return SURE * max(a + b for a, b in zip(held, kept, strict=True)) + _besides(sketch)


def always(sketch: Sketch) -> float:
    """Return bytes that a GPU holds throughout in the mean over the pipeline, with the runtime's.

    They are no more for any other order of the pipeline, so one layout tells of its whole group.
    """
    plan: Plan = [[Step(stage, "F", 0)] for stage in range(sketch.job.stages)]
    job = replace(sketch.job, plan=plan)
    held = fsum(alike(sketch.looks, lambda stage: _held(job, stage))) / job.mesh.pp
    return SURE * held + _besides(sketch)


def _held(job: Job, stage: int) -> float:
    """Return the bytes of weights, gradients and optimizer, which stages of a rank do not share."""
    found = persistent(job, [stage])
    return fsum(found[name] for name in ("weights", "gradients", "optimizer"))


def _besides(sketch: Sketch) -> float:
    return besides(sketch.job, sketch.prices.cluster)


def besides(job: Job, cluster: Cluster) -> float:
    """Return the bytes that the process of a rank takes besides those of its step."""
    return outside(job.mesh, cluster.gpu.costs.get("runtime"))


def _kept(q: int, order: Lines, costs: Sequence[Cost]) -> float:
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
