"""Is a recipe a legal job, and what memory does it need? Answered without simulating it.

The peak of a rank is found by walking through its steps in order: a forward keeps its stage's
activations until its backward, which for full recomputation holds one rebuilt layer besides. Where
parameters or gradients are split, programs are walked item by item (:mod:`sim.held`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schedules import Step, flat
from sim import topology
from sim.activations import rebuilt_bytes, stage_bytes
from sim.held import most_held
from sim.job import Job
from sim.recipe import Recipe
from sim.resident import resident
from sim.runs import job_of

SHARE = {"F": 1.0, "B": -1.0, "I": -0.5, "W": -0.5}  # of a stage's activations, by kind of step


def check(recipe: Recipe) -> dict[str, Any]:
    """The memory of every pipeline rank, in the form of ``summary.json``, and the GPU's capacity.

    Raises ValueError, in one sentence, for what cannot run.
    """
    spec = topology.room(topology.read(recipe.cluster.topology), recipe.cluster.gpus)
    job = job_of(recipe)
    each = job.mesh.tp * job.mesh.cp * job.mesh.dp
    stages = _stages(job)
    memory = [
        {"rank": int(job.ranks[0, 0, 0, q]), "stands_for": each, **_peak(job, q, stages, steps)}
        for q, steps in enumerate(flat(job.plan))
    ]
    capacity = float(spec["gpu"]["memory"])
    fits = all(entry["peak_bytes"] <= capacity for entry in memory)
    return {"memory": memory, "capacity_bytes": capacity, "fits": fits}


def _stages(job: Job) -> list[Mapping[str, float]]:
    """Bytes that each stage keeps per microbatch, by category."""
    known: dict[object, Mapping[str, float]] = {}
    out = []
    for s in range(job.stages):
        ends = (s == 0, s == job.stages - 1)
        shape = (*map(job.model.routed, job.layers(s)), "and", *ends)
        if shape not in known:
            known[shape] = stage_bytes(job.model, job.setting, job.layers(s), *ends)
        out.append(known[shape])
    return out


def _rebuilt(job: Job, stage: int) -> float:
    """Bytes of the largest layer of a stage that recomputation brings back."""
    kinds = {job.model.routed(i): i for i in job.layers(stage)}
    return max(rebuilt_bytes(job.model, job.setting, i) for i in kinds.values())


def _peak(
    job: Job, q: int, stages: Sequence[Mapping[str, float]], steps: Sequence[Step]
) -> dict[str, Any]:
    """What a rank holds during the step that needs most."""
    if job.data.split or job.setting.offload:
        return _sum(
            Counter(resident(job, sorted({step.stage for step in steps}), q)), most_held(job, steps)
        )
    mine = sorted({step.stage for step in steps})
    row = np.array([mine.index(step.stage) for step in steps])
    change = np.array([SHARE[step.kind] for step in steps])
    changes = np.zeros((len(steps), len(mine)))
    changes[np.arange(len(steps)), row] = change
    kept = np.cumsum(changes, axis=0) - np.minimum(changes, 0.0)  # a backward frees at its end
    rebuilt = [_rebuilt(job, s) for s in mine]
    again = np.array(
        [rebuilt[i] if step.kind in "BI" else 0.0 for i, step in zip(row, steps, strict=True)]
    )
    size = np.array([sum(stages[s].values()) for s in mine])
    logits = np.array([stages[s].get("logits", 0.0) for s in mine])
    gone = np.where(again > 0, logits[row], 0.0)  # the head's backward comes before the layers'
    k = int(np.argmax(kept @ size + again - gone))
    held: Counter[str] = Counter(resident(job, mine, q))
    for s, count in zip(mine, kept[k], strict=True):
        held.update({name: float(count * size) for name, size in stages[s].items()})
    return _sum(held, {"recompute": float(again[k]), "logits": -float(gone[k])})


def _sum(held: Counter[str], more: Mapping[str, float]) -> dict[str, Any]:
    held.update(more)
    categories = {name: float(amount) for name, amount in held.items() if amount}
    return {"peak_bytes": sum(categories.values()), "by_category": categories}
