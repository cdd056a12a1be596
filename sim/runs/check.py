"""Whether a recipe is a legal job, and which memory it needs; it is simulated only if it must be.

Ops usually allocate and free memory in the order in which they are issued
(:mod:`sim.memory.untimed`). Where gathers and reductions run beside kernels, they do not, and the
step is simulated. A job fits if its memory, and that of the process besides
(:mod:`sim.memory.runtime`), are no more than the GPU has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.engine.choice import chosen
from sim.machine import cluster as clusters
from sim.machine.kernels import borrowed
from sim.memory.untimed import untimed
from sim.perturbations import slowed
from sim.recipe.legality.products import able
from sim.recipe.recipe import Recipe
from sim.runs.fold import candidates
from sim.runs.hosted import issuer, kernel_seconds, pace, with_host
from sim.runs.run import Report, build, job_of, load, run
from sim.runs.untimed_figures import machine, memory, pipeline


def check(recipe: Recipe | str | Path, report: Report = lambda *_: None) -> dict[str, Any]:
    """Say whether a recipe is a legal job, whether it fits, and how much memory its ranks need.

    ``memory`` has an entry for each rank that may differ, as in ``summary.json``;
    ``capacity_bytes`` is what a GPU has. ``simulated`` says whether the step had to be
    simulated; ``report``, if given, is told how far that is. ``host`` compares kernels with their
    launches; ``priced_as`` says which kernels the machine has no constants for, and the kind whose
    constants they have. Raises InputError for a recipe that cannot run.
    """
    recipe = recipe if isinstance(recipe, Recipe) else load(recipe)
    chosen(recipe.simulation.engine, 0)  # refused, if it cannot run here
    cluster = clusters.load(recipe.cluster.topology, recipe.cluster.gpus)
    able(recipe, recipe.cluster.topology, cluster.gpu.peak)
    slowed(cluster, recipe.perturbations)  # refused, if it has no such link
    job = job_of(recipe, cluster)
    graph, host = build(job, next(candidates(job)), sends=False), issuer(recipe)
    issued = with_host(graph, host.prices) if host and host.always else graph
    found = untimed(issued)
    timeline = found or run(recipe, report=report).timeline
    ranks, capacity = memory(recipe, job, cluster, timeline), cluster.gpu.memory
    for entry in ranks:
        del entry["seconds"]  # of the peak, which only a simulated step knows
    speed = pace(recipe, graph, kernel_seconds(graph, cluster))
    waits = host is not None and (host.always or speed.launch_s > speed.kernel_s)
    priced = borrowed(cluster.gpu, graph.works)
    fits = all(entry["device_bytes"] <= capacity for entry in ranks)
    return {
        "memory": ranks,
        "capacity_bytes": capacity,
        "fits": fits,
        "simulated": found is None,
        **pipeline(recipe),
        "machine": machine(cluster),
        **({"priced_as": priced} if priced else {}),
        "host": speed._replace(simulated=waits)._asdict(),
    }
