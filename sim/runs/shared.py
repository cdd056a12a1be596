"""What runs of one process have in common, as those of a sweep: made once, the last few are kept.

Files are read each time, so that a cluster is another one as soon as its topology is.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.builder.groups import Atom, shifted
from sim.builder.job import Job
from sim.graph import Communication
from sim.machine import cluster as clusters
from sim.machine.assumed import changed
from sim.machine.cluster import Cluster
from sim.machine.symmetry import Orbit, Orbits
from sim.machine.topology import read, room
from sim.recipe.recipe import Recipe
from sim.runs.kept import Kept

MOST_GPUS = 4_096
"""Larger clusters are not kept: they take memory, and a run on them takes longer than they do."""
_clusters, _orbits, _orbit = Kept[Cluster](4), Kept[Orbits](256), Kept[Orbit](1024)


def cluster_of(recipe: Recipe) -> Cluster:
    """Return the recipe's cluster, with the effects that its simulation has."""
    gpus, of = recipe.cluster.gpus, recipe.simulation
    spec = room(read(recipe.cluster.topology), gpus)

    def made() -> Cluster:
        cluster = clusters.of_spec(spec, gpus)
        if of.clock == "boost":
            cluster = clusters.at_boost(cluster)
        return cluster if of.spread else clusters.alike(cluster)

    if gpus > MOST_GPUS:
        return made()
    key = (repr(spec), gpus, of.clock, of.spread, changed())
    return _clusters.of(key, made)


def orbits(
    cluster: Cluster,
    job: Job,
    over: Sequence[Atom],
    names: Sequence[str],
    ranks: tuple[int, ...],
) -> Orbits:
    """Return the orbits of these ranks along some of all atoms, ``over``."""

    def found() -> Orbits:
        return Orbits(cluster, shifted(job, names, ranks, over))

    if job.mesh.world > MOST_GPUS:
        return found()
    return _orbits.of((cluster, job.mesh, *over, *names, ranks), found)


def orbit(of: Orbits, work: Communication) -> Orbit:
    """Return the orbit of a work."""
    return _orbit.of((of, work), lambda: of.of(work))
