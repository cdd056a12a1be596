"""Which ranks are simulated: one of several that cannot differ, once that is proven.

Tensor-parallel peers and data-parallel replicas of a uniform job do the same at the same time, if
the network treats them alike. Shifting all ranks along tp and dp must map the job's communication
onto itself, with the same loads on alike links (:mod:`sim.symmetry`). Where that holds, one lane of
ranks (one tp and dp coordinate) stands for all; its communication carries the loads of its clones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sim.cluster import Cluster
from sim.collectives import Traffic, traffic
from sim.graph import Communication
from sim.job import Job
from sim.symmetry import fold_loads

LATENCY_SPREAD = 20e-6
"""How far latencies of clones may differ (s): some cross one switch more. The longest counts."""


@dataclass(frozen=True)
class Load:
    """What one communication puts on links: bytes of itself and all its clones, link by link."""

    links: tuple[int, ...]
    bytes: tuple[float, ...]
    most: float  # bytes of itself alone on its own most loaded link
    latency: float
    algorithm: str


@dataclass(frozen=True)
class Lanes:
    """The (tp, dp) coordinates that are simulated; the other coordinates of ``axes`` are clones."""

    simulated: Sequence[tuple[int, int]]
    axes: tuple[str, ...]  # folded: of "tp", "dp"


def candidates(job: Job) -> Iterator[Lanes]:
    """Ways to fold, the fewest ranks first; the last folds nothing."""
    t, d = job.mesh.tp, job.mesh.dp
    seen = set()
    ways: tuple[tuple[str, ...], ...] = (("tp", "dp"), ("dp",), ("tp",), ())
    for way in ways:
        axes = tuple(axis for axis in way if {"tp": t, "dp": d}[axis] > 1)
        if axes not in seen:
            seen.add(axes)
            shape = (1 if "tp" in axes else t, 1 if "dp" in axes else d)
            yield Lanes(list(np.ndindex(shape)), axes)


def loads(
    cluster: Cluster, job: Job, axes: Sequence[str], works: Sequence[Communication]
) -> list[Load] | None:
    """What each work loads with its clones along ``axes``, or None if they are not alike."""
    if not axes:
        return [_single(cluster, traffic(cluster, work)) for work in works]
    orbits = [
        [
            traffic(cluster, work._replace(ranks=ranks))
            for ranks in _orbit(job, axes, work.ranks, work.dimension)
        ]
        for work in works
    ]
    folded = fold_loads(cluster, orbits, LATENCY_SPREAD)
    if folded is None:
        return None
    return [
        Load(tuple(f.links.tolist()), tuple(f.bytes.tolist()), f.most, f.latency, f.algorithm)
        for f in folded
    ]


def _single(cluster: Cluster, one: Traffic) -> Load:
    keep = cluster.limiting[one.links]
    links, size = one.links[keep], one.bytes[keep]
    most = float(one.bytes.max(initial=0.0))
    return Load(tuple(links.tolist()), tuple(size.tolist()), most, one.latency, one.algorithm)


def _orbit(
    job: Job, axes: Sequence[str], ranks: tuple[int, ...], dimension: str
) -> list[tuple[int, ...]]:
    """The images of a group under all shifts along ``axes``, each once, itself first."""
    grid = job.ranks
    at = np.argsort(grid, axis=None)  # rank -> flat coordinates
    place = np.array(np.unravel_index(at[list(ranks)], grid.shape))
    t, d = (grid.shape[k] if axis in axes else 1 for k, axis in enumerate(("tp", "dp")))
    shifts = np.array(list(np.ndindex(t, d)))
    if dimension == "kv":  # groups are runs of so many tp ranks: no other shift maps them
        shifts = shifts[shifts[:, 0] % len(ranks) == 0]
    if (run := _run(job, dimension, len(ranks))) > 1:  # likewise of dp ranks
        shifts = shifts[shifts[:, 1] % run == 0]
    tp = (place[0] + shifts[:, :1]) % grid.shape[0]
    dp = (place[1] + shifts[:, 1:]) % grid.shape[1]
    images = grid[tp, dp, place[2]]
    unique: dict[tuple[int, ...], tuple[int, ...]] = {}
    for image in images.tolist():
        unique.setdefault(tuple(sorted(image)), tuple(image))
    return list(unique.values())


def _run(job: Job, dimension: str, size: int) -> int:
    """How many neighbouring replicas a group of sharded data parallelism takes in."""
    match dimension:
        case "shard" | "reshard":
            return size
        case "model":
            return job.data.optimizer_split
    return 1
