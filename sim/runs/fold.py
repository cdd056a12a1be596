"""The choice of the ranks that are simulated: one of several that are proven not to differ.

Tensor-parallel peers and data-parallel replicas of a uniform job do the same at the same time if
the network treats them alike. The proof is that shifting all ranks along an axis maps the
communication of the job onto itself (:mod:`sim.builder.groups`), with the same loads on alike links
(:mod:`sim.machine.symmetry`). Where that holds, one lane of ranks stands for all, and its
communication carries the loads of its clones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from sim.builder.groups import Lane, alike, atoms, folded, shifted, simulated
from sim.builder.job import Job
from sim.graph import Communication
from sim.machine.cluster import Cluster
from sim.machine.collectives import Traffic, traffic
from sim.machine.price import LinkLoad
from sim.machine.symmetry import Orbit, Orbits, apart, fold


@dataclass(frozen=True)
class Lanes:
    """The lanes that are simulated; lanes that differ from them only along ``atoms`` are clones."""

    simulated: Sequence[Lane]
    axes: tuple[str, ...]  # folded: axes, and parts of axes
    atoms: tuple[str, ...]


def candidates(job: Job, kinds: NDArray[np.int64] | None = None) -> Iterator[Lanes]:
    """Yield the ways to fold, the fewest lanes first; the last folds nothing.

    ``kinds``, if given, has a number for each rank; ranks with different numbers are not alike.
    """
    over = atoms(job)
    same = alike(job, over, kinds)
    able = {a.name: a.size for a in over if a.able and a.size > 1 and a.name in same}
    ways = [names for n in range(len(able), -1, -1) for names in combinations(able, n)]
    for names in sorted(ways, key=lambda names: -prod(able[name] for name in names)):
        yield Lanes(simulated(job, over, names), folded(over, names), names)


def loads(
    cluster: Cluster, job: Job, axes: Sequence[str], works: Sequence[Communication]
) -> list[LinkLoad] | None:
    """Return the links that each work and its clones along ``axes`` load, or None if these differ.

    One per work.
    """
    if not axes:
        return [_single(cluster, traffic(cluster, work)) for work in works]
    folded = fold(cluster, _orbits(cluster, job, axes, works))
    if folded is None:
        return None
    return [
        LinkLoad(
            tuple(f.links.tolist()),
            tuple(f.bytes.tolist()),
            f.most,
            f.latency,
            f.algorithm,
            f.apart,
        )
        for f in folded
    ]


def parting(
    cluster: Cluster, job: Job, names: Sequence[str], works: Sequence[Communication]
) -> set[str]:
    """Return those of the atoms ``names`` along which the latencies of a work's clones differ."""
    return {
        name
        for name in names
        if any(apart(orbit.kinds) for orbit in _orbits(cluster, job, (name,), works))
    }


def _orbits(
    cluster: Cluster, job: Job, axes: Sequence[str], works: Sequence[Communication]
) -> list[Orbit]:
    """Return the orbit of each work."""
    over, known = atoms(job), dict[tuple[int, ...], Orbits]()
    for work in works:
        if work.ranks not in known:
            known[work.ranks] = Orbits(cluster, shifted(job, axes, work.ranks, over))
    return [known[work.ranks].of(work) for work in works]


def _single(cluster: Cluster, one: Traffic) -> LinkLoad:
    keep = cluster.limiting[one.links]
    links, size = one.links[keep], one.bytes[keep]
    most = float(one.bytes.max(initial=0.0))
    return LinkLoad(tuple(links.tolist()), tuple(size.tolist()), most, one.latency, one.algorithm)
