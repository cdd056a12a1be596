"""Simulates one layer of a recipe alone: forward, backward and its two halves."""

from __future__ import annotations

from collections.abc import Mapping

from sim.machine import cluster as clusters
from sim.recipe.recipe import Recipe
from sim.runs.run import job_of
from sim.runs.stage_times import stage_timelines
from sim.timeline import Timeline


def layer_timelines(recipe: Recipe, layers: int = 1) -> Mapping[str, Timeline]:
    """Return F, B, I and W of some layers of a recipe's model, each by itself on one rank."""
    job = job_of(recipe)
    cluster = clusters.load(recipe.cluster.topology, job.mesh.tp)
    if recipe.simulation.clock == "boost":
        cluster = clusters.at_boost(cluster)
    return stage_timelines(job, cluster, range(layers))
