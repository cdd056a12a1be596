"""The choice of the ranks that are simulated: one of several that are proven not to differ.

Tensor-parallel peers and data-parallel replicas of a uniform job do the same at the same time if
the network treats them alike. The proof is that shifting all ranks along an axis maps the
communication of the job onto itself (:mod:`sim.builder.groups`), with the same loads on alike links
(:mod:`sim.machine.symmetry`). Where that holds, one lane of ranks stands for all, and its
communication carries the loads of its clones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from sim.builder.alike import Alike, classes, meetings
from sim.builder.groups import Lane, alike, atoms, folded, shifted, simulated, stand_ins
from sim.builder.job import Job
from sim.builder.training_step import training_step
from sim.graph import Communication, Longs
from sim.machine.cluster import Cluster
from sim.machine.collectives import Traffic, traffic
from sim.machine.price import LinkLoad
from sim.machine.symmetry import Orbit, Orbits, apart, fold
from sim.runs import shared


@dataclass(frozen=True)
class Lanes:
    """The lanes that are simulated; lanes that differ from them only along ``atoms`` are clones."""

    simulated: Sequence[Lane]
    axes: tuple[str, ...]  # folded: axes, and parts of axes
    atoms: tuple[str, ...]
    alike: Alike | None = None
    """The classes of lanes, where some that differ only along ``atoms`` are not clones."""

    def stand_ins(self, job: Job) -> Longs:
        """Return the rank that is simulated for each rank of the job, shape (ranks,)."""
        return self.alike.stand_ins() if self.alike else stand_ins(job, self.atoms)


def candidates(job: Job, kinds: Longs | None = None) -> Iterator[Lanes]:
    """Yield the ways to fold, the fewest lanes first; the last folds nothing.

    ``kinds``, if given, has a number for each rank; ranks with different numbers are not alike.
    Then only lanes that stay alike fold (see :mod:`sim.builder.alike`).
    """
    over = atoms(job)
    same = alike(job, over, kinds)
    able = {a.name: a.size for a in over if a.able and a.size > 1}
    partial = _partial(job, kinds, tuple(able)) if {*able} - same and kinds is not None else None
    ways = [names for n in range(len(able), -1, -1) for names in combinations(able, n)]
    ways.sort(key=lambda names: -prod(able[name] for name in names))
    found = (
        Lanes(simulated(job, over, names), folded(over, names), names)
        if partial is None or same.issuperset(names)
        else partial(names)
        for names in ways
        if partial is not None or same.issuperset(names)
    )
    some = (lanes for lanes in found if lanes is not None)
    yield from some if partial is None else sorted(some, key=lambda lanes: len(lanes.simulated))


def ways(job: Job, cluster: Cluster, kinds: Longs | None = None) -> list[Lanes]:
    """Return the ways to fold on a cluster, some of whose links may be slow.

    After the ways that hold if slow links matter to nobody come those on which ranks near different
    links are not alike; the fewest lanes are first.
    """
    out, near = list(candidates(job, kinds)), _near(cluster)
    if near is not None:
        both = np.stack(
            [near[: job.mesh.world], np.zeros(job.mesh.world) if kinds is None else kinds]
        )
        _, mine = np.unique(both, axis=1, return_inverse=True)
        out += [lanes for lanes in candidates(job, mine.ravel()) if lanes.alike]
    return sorted(out, key=lambda lanes: len(lanes.simulated))


def _near(cluster: Cluster) -> Longs | None:
    """Return a number for each GPU, the same where the links near it are; None if none is slow."""
    if cluster.healthy is None or cluster.links_near is None:
        return None
    return np.unique(cluster.links_near, return_inverse=True)[1]


def _partial(
    job: Job, kinds: Longs, able: tuple[str, ...]
) -> Callable[[tuple[str, ...]], Lanes | None]:
    """Return what finds the classes of lanes along some atoms, if any of them fold by that."""
    over = atoms(job)
    one = training_step(job, simulated(job, over, able))
    groups = {work.ranks for work in one.works if isinstance(work, Communication)}
    met = meetings(job, over, able, groups)

    def find(names: tuple[str, ...]) -> Lanes | None:
        found = classes(job, over, names, kinds, met)
        whole = alike(job, over, found.of_rank()) & {*names}
        fewest = prod(atom.size for atom in over if atom.name not in whole)
        if len(found) >= fewest:
            return None  # no fewer than those of whole atoms
        return Lanes(found.simulated(), folded(over, whole), names, found)

    return find


def loads(
    cluster: Cluster,
    job: Job,
    axes: Sequence[str],
    works: Sequence[Communication],
    alike: Alike | None = None,
) -> list[LinkLoad] | None:
    """Return the links that each work and its clones along ``axes`` load, or None if these differ.

    One per work. With classes of lanes only groups of the same classes are clones.
    """
    if not axes:
        return [_single(cluster, traffic(cluster, work)) for work in works]
    folded = fold(cluster, _orbits(cluster, job, axes, works, alike))
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
    cluster: Cluster,
    job: Job,
    axes: Sequence[str],
    works: Sequence[Communication],
    alike: Alike | None = None,
) -> list[Orbit]:
    """Return the orbit of each work."""
    over, known = atoms(job), dict[tuple[int, ...], Orbits]()
    for work in works:
        if work.ranks not in known:
            known[work.ranks] = (
                shared.orbits(cluster, job, over, axes, work.ranks)
                if alike is None
                else _of_classes(cluster, shifted(job, axes, work.ranks, over), alike)
            )
    return [shared.orbit(known[work.ranks], work) for work in works]


def _of_classes(cluster: Cluster, images: Longs, alike: Alike) -> Orbits:
    """Return the orbits of the first of some ranks, given all images, in its own classes."""
    looks = alike.looks(images)
    return Orbits(cluster, images[looks == looks[0]])


def _single(cluster: Cluster, one: Traffic) -> LinkLoad:
    keep = cluster.limiting[one.links]
    links, size = one.links[keep], one.bytes[keep]
    most = float(one.bytes.max(initial=0.0))
    return LinkLoad(tuple(links.tolist()), tuple(size.tolist()), most, one.latency, one.algorithm)
