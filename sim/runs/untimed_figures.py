"""The figures that need no times: memory of each rank, the pipeline, where constants are from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from schedules.user_code import is_path
from sim.builder.job import Job
from sim.machine.cluster import Cluster
from sim.machine.provenance import FAMILIES
from sim.memory import causes as memory_causes
from sim.memory.at_peak import at_peak
from sim.memory.curve import peaks
from sim.memory.decisions import decided
from sim.memory.pieces import pieces
from sim.memory.reserved import reserved
from sim.memory.runtime import outside
from sim.recipe import messages
from sim.recipe.recipe import Recipe
from sim.timeline import Timeline


def machine(cluster: Cluster) -> dict[str, Any]:
    """Return which constants were measured on this machine, and which topology gives the others."""
    return {
        "topology": cluster.name,
        "calibrated": [name for name in FAMILIES if name not in cluster.borrowed],
        "borrowed": dict(cluster.borrowed),
    }


def pipeline(recipe: Recipe) -> dict[str, Any]:
    """Return the schedule of a pipeline, how it sends messages, and its stages' layers."""
    if recipe.parallelism.pp == 1:
        return {}
    name = recipe.schedule.name
    return {
        "pipeline": {
            "schedule": Path(name).name if is_path(name) else name,
            "p2p": messages.p2p(recipe.parallelism, recipe.schedule),
            "layers_per_stage": list(recipe.layers_per_stage),
        }
    }


def memory(recipe: Recipe, job: Job, cluster: Cluster, timeline: Timeline) -> list[dict[str, Any]]:
    """Return each simulated rank's memory peak, what it holds then, and what :func:`held` adds."""
    memory = [asdict(peak) for peak in peaks(timeline)]
    live = at_peak(timeline)
    for entry, of, decisions in zip(
        memory, live, decided(recipe, job, [of.rank for of in live]), strict=True
    ):
        entry["at_peak"] = memory_causes.figures(of, decisions)
    return held(memory, recipe, job, cluster, timeline)


def held(
    memory: list[dict[str, Any]], recipe: Recipe, job: Job, cluster: Cluster, timeline: Timeline
) -> list[dict[str, Any]]:
    """Return peaks with the bytes of the device and, if asked for, what an allocator reserves."""
    way = recipe.simulation.allocator
    if way != "exact":
        found = reserved(timeline, way == "expandable", pieces(job))
        memory = [entry | asdict(of) for entry, of in zip(memory, found, strict=True)]
    besides = outside(job.mesh, cluster.gpu.costs.get("runtime"))
    for entry in memory:
        entry["device_bytes"] = entry.get("reserved_bytes", entry["peak_bytes"]) + besides
    return memory
