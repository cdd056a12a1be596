"""Is a recipe a legal job, and what memory does it need? Answered without simulating it.

The peak of a rank is found by walking through its steps in order, and through the program of each
item by item (:mod:`sim.held`). A job fits if that and what is outside of it (:mod:`sim.outside`)
are no more than the GPU has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from schedules import Step, flat
from sim import topology
from sim.analysis.at_peak import AtPeak, nets
from sim.analysis.memory_causes import Decisions, figures
from sim.decisions import decided
from sim.held import Profile, most_held
from sim.job import Job
from sim.legality.products import able
from sim.outside import outside
from sim.recipe import Recipe
from sim.resident import resident
from sim.runs import job_of


def check(recipe: Recipe) -> dict[str, Any]:
    """The memory of every pipeline rank, in the form of ``summary.json``, and the GPU's capacity.

    Raises ValueError, in one sentence, for what cannot run.
    """
    spec = topology.room(topology.read(recipe.cluster.topology), recipe.cluster.gpus)
    able(recipe, recipe.cluster.topology, spec["gpu"]["peak"])
    job = job_of(recipe)
    each = job.mesh.tp * job.mesh.cp * job.mesh.dp
    known: dict[object, Profile] = {}
    besides = outside(job.mesh, spec["costs"].get("runtime"))
    memory = []
    ranks: list[int] = job.ranks[0, 0, 0].tolist()
    of_ranks = zip(ranks, flat(job.plan), decided(recipe, job, ranks), strict=True)
    for q, (rank, steps, decisions) in enumerate(of_ranks):
        peak = _peak(job, q, steps, known, decisions)
        whole = {"device_bytes": peak["peak_bytes"] + besides}
        memory.append({"rank": rank, "stands_for": each, **peak, **whole})
    capacity = float(spec["gpu"]["memory"])
    fits = all(entry["device_bytes"] <= capacity for entry in memory)
    return {"memory": memory, "capacity_bytes": capacity, "fits": fits}


def _peak(
    job: Job, q: int, steps: Sequence[Step], known: dict[object, Profile], decisions: Decisions
) -> dict[str, Any]:
    """What a rank holds during the step that needs most."""
    found = most_held(job, steps, known)
    held = Counter(resident(job, sorted({step.stage for step in steps}), q))
    held.update(found.by_category())
    categories = {name: float(amount) for name, amount in held.items() if amount}
    step = f"{found.step.kind} of stage {found.step.stage}, microbatch {found.step.microbatch}"
    live = AtPeak(q, step, nets(found.places), found.deferred)
    return {
        "peak_bytes": sum(categories.values()),
        "by_category": categories,
        "at_peak": figures(live, decisions),
    }
