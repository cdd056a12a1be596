"""Whether replicas of a communication may stand for each other, and what load one then carries.

The replicas of one communication, under translations along tp or dp, are its *orbit*; they start
together. One of them may be simulated for all if they also move at one speed, whatever else runs.
This holds when the orbits and some classes of links are an equitable partition: links of one class
have the same capacity and the same loads from each orbit, and members of one orbit have the same
loads on each class. Then all links of a class fill up at once, so one of them represents all.
Since orbits must not be cut, colour refinement (Weisfeiler and Leman 1968) ends after one round:
links are classed by their capacity and by what each orbit puts on them, and the members of each
orbit are compared by the classes that they load. That is the coarsest such partition, or shows that
the members of an orbit differ. The cost is that of reading each orbit's loads once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Bools, Communication, Floats, Ints, Longs
from sim.machine.classes import firsts, one_row
from sim.machine.cluster import Cluster
from sim.machine.collectives import Traffic, traffic
from sim.machine.collectives.base import Ranks
from sim.machine.collectives.placements import Placements, Rows, placements, sizes, spread
from sim.machine.collectives.routed import NONE
from sim.machine.hashes import Hashes, mix

Integers = Longs

ROUNDING = 1e-12
"""The share of a latency by which its sums along two routes may differ."""
DIGITS = 12
"""Digits of a load, as a share of its communication's most loaded link, that count."""
TINY = np.finfo(np.float64).tiny


class Folded(NamedTuple):
    """A :class:`Traffic` for a whole orbit: on one link of each class, the bytes of all members."""

    links: Ints  # the first link of each class, ascending
    bytes: Floats  # bytes of all members together on each of these links
    latency: float  # the longest latency of its members, seconds
    apart: float  # seconds by which its members' latencies differ
    algorithm: str
    most: float
    """Bytes of one member on its own most loaded link; ``bytes / most`` are its coefficients."""


class Orbit(NamedTuple):
    """All members of one orbit, of which those of one kind differ only in which links they use."""

    members: int
    rows: Rows  # what they put on links that can limit, by member
    kinds: Sequence[Traffic]  # one member of each kind, that of the first member first

    @property
    def sizes(self) -> Floats:
        """The bytes of each source of ``rows``."""
        return sizes(self.kinds)

    @property
    def shares(self) -> Floats:
        """Those bytes over the most of the kind's links, to the digits that count."""
        shares = [kind.some[1] / max(most(kind), TINY) for kind in self.kinds]
        return np.asarray(np.round(np.concatenate(shares), DIGITS), np.float64)

    @property
    def alike(self) -> bool:
        """Whether all members have the same bytes."""
        each = np.array([most(kind) for kind in self.kinds])
        return bool(np.all(np.isclose(each, each[:1], rtol=1e-12, atol=0.0)))


def most(one: Traffic) -> float:
    """Return the bytes on its most loaded link."""
    return float(one.some[1].max(initial=0.0))


class Orbits:
    """The orbits of communications of the same ranks, given all images of these."""

    def __init__(self, cluster: Cluster, images: Ranks) -> None:
        self._cluster, self._images = cluster, images
        found = placements(cluster.healthy or cluster, images)
        order = np.argsort(found.first)  # the kind of the first member first
        self._placed = Placements(np.argsort(order)[found.kind], found.first[order])
        self._firsts = [tuple(images[k].tolist()) for k in self._placed.first]
        self._rows: dict[Hashable, tuple[Sequence[Traffic], Rows]] = {}

    def of(self, work: Communication) -> Orbit:
        """Return the orbit of a communication."""
        kinds = [traffic(self._cluster, work._replace(ranks=ranks)) for ranks in self._firsts]
        key = tuple(map(_links, kinds))
        if key not in self._rows:
            cluster = self._cluster.healthy or self._cluster
            rows = spread(cluster, self._images, self._placed, kinds)
            self._rows[key] = kinds, limiting(self._cluster, rows)
        return Orbit(len(self._images), self._rows[key][1], kinds)


def _links(one: Traffic) -> Hashable:
    """Return what is equal for communications on the same links; those in classes are known."""
    return id(one.links) if one.classes else one.links.tobytes()


def fold_loads(cluster: Cluster, orbits: Sequence[Sequence[Traffic]]) -> list[Folded] | None:
    """Return what each orbit's representative carries, or None where folding is not proven exact.

    As :func:`fold`, given each member.
    """
    return fold(cluster, [_orbit(cluster, members) for members in orbits])


def _orbit(cluster: Cluster, members: Sequence[Traffic]) -> Orbit:
    plain = [Traffic(*member) for member in members]
    group = np.repeat(np.arange(len(members), dtype=np.int32), [len(one.links) for one in plain])
    link = np.concatenate([NONE, *(member.links for member in plain)])
    rows = Rows(group, link, np.arange(len(link), dtype=np.int32))
    return Orbit(len(members), limiting(cluster, rows), plain)


def limiting(cluster: Cluster, rows: Rows) -> Rows:
    """Return the rows of links that can limit."""
    keep = np.flatnonzero(cluster.limiting[rows.link])
    return rows if len(keep) == len(rows.link) else rows.at(keep)


def fold(cluster: Cluster, orbits: Sequence[Orbit]) -> list[Folded] | None:
    """Return what each orbit's representative carries, or None where folding is not proven exact.

    ``orbits`` must hold every communication that may be on the network, each orbit with all its
    members. Only links that can limit count. Where latencies within an orbit are ``apart``, folding
    is exact except for that. Bytes of members on a link are multiplied, not added one by one.
    """
    if not all(orbit.alike for orbit in orbits):
        return None
    distinct: dict[Hashable, _Loads] = {}
    loads = [
        distinct.setdefault(_key(orbit), _Loads(orbit.members, orbit.rows, orbit.shares))
        for orbit in orbits
    ]
    used, colour = _colours(cluster.capacity, list(distinct.values()))
    if not all(of.one_colour(colour, k) for k, of in enumerate(distinct.values())):
        return None
    canonical = np.zeros(len(colour), np.bool_)
    canonical[used[firsts(colour[used])]] = True
    for of in distinct.values():
        of.choose(canonical)
    return [_folded(orbit, of) for orbit, of in zip(orbits, loads, strict=True)]


def _key(orbit: Orbit) -> Hashable:
    """Return what is equal for orbits that put the same shares on the same links."""
    return id(orbit.rows.link), orbit.shares.tobytes()


def _colours(capacity: Floats, loads: Sequence[_Loads]) -> tuple[Integers, Hashes]:
    """Return the links in use, and the colour of each link by its capacity and its loads."""
    found, there = np.zeros(len(capacity), np.uint64), np.zeros(len(capacity), np.bool_)
    for k, of in enumerate(loads):
        np.add.at(found, of.rows.link, of.hashes(k)[of.rows.source])
        there[of.rows.link] = True
    used = np.flatnonzero(there)
    found[used] = mix(found[used] ^ mix(capacity[used].view(np.uint64)))
    return used, found


class _Loads:
    """The shares that one or several orbits put on links."""

    def __init__(self, members: int, rows: Rows, shares: Floats) -> None:
        self.members, self.rows, self.shares = members, rows, shares

    def hashes(self, seed: int) -> Hashes:
        """Return a hash of the share of each source."""
        return mix(self.shares.view(np.uint64) ^ mix(np.array([seed], np.uint64)))

    def one_colour(self, colour: Hashes, seed: int) -> bool:
        """Return whether all members have the same shares on the same colours of links."""
        if self.members == 1:
            return True
        row = mix(colour[self.rows.link] ^ self.hashes(seed)[self.rows.source])
        begin = np.flatnonzero(np.diff(self.rows.group, prepend=-1))
        if len(begin) != self.members:
            return not len(begin)  # all or none of them use links that can limit
        return one_row(np.add.reduceat(row, begin))

    def choose(self, canonical: Bools) -> None:
        """Count the loads on the canonical links: of each link and share, ascending."""
        chosen = np.flatnonzero(canonical[self.rows.link])
        link, source = self.rows.link[chosen], self.rows.source[chosen]
        _, share = np.unique(self.shares, return_inverse=True)
        pairs = link.astype(np.int64) * (len(self.shares) + 1) + share[source]
        kinds, first, self.count = np.unique(pairs, return_index=True, return_counts=True)
        self.source = source[first]
        self.links, self.row = np.unique(kinds // (len(self.shares) + 1), return_inverse=True)


def _folded(orbit: Orbit, of: _Loads) -> Folded:
    load = of.count * orbit.sizes[of.source]
    total = np.bincount(of.row, load, minlength=len(of.links)).astype(np.float64)
    return Folded(
        of.links.astype(np.int32),
        total,
        max(kind.latency for kind in orbit.kinds),
        apart(orbit.kinds),
        orbit.kinds[0].algorithm,
        most(orbit.kinds[0]),
    )


def apart(members: Iterable[Traffic]) -> float:
    """Return the seconds by which the members' latencies differ; 0 if only by rounding."""
    latencies = [member.latency for member in members]
    most = max(latencies)
    found = most - min(latencies)
    return found if found > ROUNDING * most else 0.0
