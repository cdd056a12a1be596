"""Whether replicas of a communication may stand for each other, and what load one then carries.

The replicas of one communication, under translations along tp or dp, are its *orbit*; they start
together. One of them may be simulated for all if they also move at one speed, whatever else runs.
This holds when the orbits and some classes of links are an equitable partition: links of one class
have the same capacity and the same loads from each orbit, and members of one orbit have the same
loads on each class. Then all links of a class fill up at once, so one of them represents all.
Colour refinement (Weisfeiler and Leman 1968) finds the coarsest such partition or shows that the
members of an orbit differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.machine.cluster import Cluster
from sim.machine.collectives import Traffic

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDING = 1e-12
"""The share of a latency by which its sums along two routes may differ."""


class Folded(NamedTuple):
    """A :class:`Traffic` for a whole orbit: on one link of each class, the bytes of all members."""

    links: NDArray[np.int32]  # the first link of each class, ascending
    bytes: Floats  # bytes of all members together on each of these links
    latency: float  # the longest latency of its members, seconds
    apart: float  # seconds by which its members' latencies differ
    algorithm: str
    most: float
    """Bytes of one member on its own most loaded link; ``bytes / most`` are its coefficients."""


class _Loads(NamedTuple):
    """One row per member of an orbit and link that it uses."""

    member: Integers
    link: Integers  # row of the links in use
    bytes: Floats
    size: Integers  # class of the bytes over the member's most


def fold_loads(cluster: Cluster, orbits: Sequence[Sequence[Traffic]]) -> list[Folded] | None:
    """Return what each orbit's representative carries, or None where folding is not proven exact.

    ``orbits`` must hold every communication that may be on the network, each orbit with all its
    members. Only links that can limit count. Where latencies within an orbit are ``apart``, folding
    is exact except for that. Bytes of members on a link are multiplied, not added one by one.
    """
    members = [member for orbit in orbits for member in orbit]
    orbit_of = np.repeat(np.arange(len(orbits)), [len(orbit) for orbit in orbits])
    most = [max(member.bytes, default=0.0) for member in members]
    firsts = np.flatnonzero(np.diff(orbit_of, prepend=-1))
    if not _alike(orbit_of, firsts, np.array(most)):
        return None
    loads, links = _loads(cluster, members, np.array(most))
    colour = _refine(loads, orbit_of, cluster.capacity[links])
    if colour is None:
        return None
    _, canonical = np.unique(colour, return_index=True)
    return _fold(orbits, orbit_of, loads, links, canonical, [most[i] for i in firsts])


def _alike(orbit_of: Integers, firsts: Integers, most: Floats) -> bool:
    """Return whether all members of each orbit have the same bytes."""
    return bool(np.all(np.isclose(most, most[firsts[orbit_of]], rtol=1e-12, atol=0.0)))


def apart(members: Sequence[Traffic]) -> float:
    """Return the seconds by which the members' latencies differ; 0 if only by rounding."""
    latencies = [member.latency for member in members]
    most = max(latencies)
    found = most - min(latencies)
    return found if found > ROUNDING * most else 0.0


def _loads(
    cluster: Cluster, members: Sequence[Traffic], most: Floats
) -> tuple[_Loads, NDArray[np.int32]]:
    member = np.repeat(np.arange(len(members)), [len(traffic.links) for traffic in members])
    used = np.concatenate([traffic.links for traffic in members] or [np.empty(0, np.int32)])
    load = np.concatenate([traffic.bytes for traffic in members] or [np.empty(0)])
    keep = cluster.limiting[used] & (load > 0)
    member, used, load = member[keep], used[keep], load[keep]
    links, link = np.unique(used, return_inverse=True)
    _, size = np.unique(np.round(load / most[member], 12), return_inverse=True)
    return _Loads(member, link, load, size), links


def _refine(loads: _Loads, orbit_of: Integers, capacity: Floats) -> Integers | None:
    """Return the class of each link in use, or None when some orbit does not stay of one colour."""
    _, links = np.unique(capacity, return_inverse=True)
    by_link, by_member = (_Groups(loads.link, len(links)), _Groups(loads.member, len(orbit_of)))
    found = -1
    while found < links.max(initial=-1):
        found = links.max(initial=-1)
        members = _split(orbit_of, by_member.sums(_mix(links[loads.link], loads.size)))
        if len(np.unique(members)) > len(np.unique(orbit_of)):
            return None
        links = _split(links, by_link.sums(_mix(orbit_of[loads.member], loads.size)))
    return links


class _Groups:
    """Adds up rows by the group that each belongs to."""

    def __init__(self, group: Integers, groups: int) -> None:
        self._order = np.argsort(group, kind="stable")
        self._present, self._begins = np.unique(group[self._order], return_index=True)
        self._groups = groups

    def sums(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the sum of each group, shape (groups,), modulo 2^64.

        A sum of hashes is a hash of the group's multiset.
        """
        out = np.zeros(self._groups, np.uint64)
        if len(self._begins):
            out[self._present] = np.add.reduceat(values[self._order], self._begins)
        return out


def _mix(colour: Integers, size: Integers) -> NDArray[np.uint64]:
    """Return a hash of both numbers (splitmix64)."""
    key = (colour.astype(np.uint64) << np.uint64(32)) + size.astype(np.uint64)
    key = key * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x632BE59BD9B4E019)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _split(colour: Integers, signature: NDArray[np.uint64]) -> Integers:
    """Return new colours, which differ where the old ones or the signatures do."""
    _, dense = np.unique(signature, return_inverse=True)
    _, out = np.unique(colour * (len(dense) + 1) + dense, return_inverse=True)
    return np.asarray(out, np.int64)


def _fold(
    orbits: Sequence[Sequence[Traffic]],
    orbit_of: Integers,
    loads: _Loads,
    links: NDArray[np.int32],
    canonical: Integers,
    most: Sequence[float],
) -> list[Folded]:
    chosen = np.isin(loads.link, canonical)
    orbit, link = orbit_of[loads.member[chosen]], loads.link[chosen]
    rows = np.stack([orbit, link, loads.size[chosen]])
    kinds, first, count = np.unique(rows, axis=1, return_index=True, return_counts=True)
    load = count * loads.bytes[chosen][first]
    places, row = np.unique(kinds[:2], axis=1, return_inverse=True)
    total = np.bincount(row.ravel(), load, minlength=places.shape[1]).astype(np.float64)
    ends = np.searchsorted(places[0], np.arange(len(orbits) + 1))
    return [
        Folded(
            links[places[1, a:b]],
            total[a:b],
            max(member.latency for member in members),
            apart(members),
            members[0].algorithm,
            float(most[i]),
        )
        for i, (members, a, b) in enumerate(zip(orbits, ends, ends[1:], strict=False))
    ]
