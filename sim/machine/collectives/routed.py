"""The links that transfers use, in classes of links that they use alike.

A collective of many ranks uses a great number of links in few ways. What an algorithm puts on them
is found for one link of each class, and what links they are is found once for all its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.machine.classes import Classes, by_code
from sim.machine.cluster import Cluster

T = TypeVar("T")
Integers = NDArray[np.int64]
Links = NDArray[np.int32]
MANY = 64
"""What is found for more ranks than that is remembered."""
FEW = 32
"""One of so many links of a cluster and fewer are sorted; more are counted in a column of all."""
NONE = np.empty(0, np.int32)


class Routed(NamedTuple):
    """What the routes of some sets of pairs of GPUs use."""

    links: Links  # ascending
    classes: Classes | None  # of links that are alike and used alike; None: each is one
    uses: Sequence[Integers]  # per set: how many routes lead over a link of each class
    delays: Sequence[float]  # per set: seconds of the slowest route

    @property
    def some(self) -> Links:
        """One link of each class."""
        return self.links if self.classes is None else self.links[self.classes.first]


def remembered(
    cluster: Cluster, what: str, some: Sequence[Integers], find: Callable[[Cluster], T]
) -> T:
    """Return what is found for some ranks, which is remembered if there are many."""
    if sum(of.size for of in some) <= MANY:
        return find(cluster)
    key = what, *(_key(of) for of in some)
    if key not in cluster.found:
        cluster.found[key] = some, find(cluster)
    out: T = cluster.found[key][1]
    return out


def _key(of: Integers) -> Hashable:
    """Return what tells arrays apart; those that nobody can change are themselves."""
    if not of.flags.writeable:
        return id(of)
    return of.shape, blake2b(np.ascontiguousarray(of).data).digest()


def routed(cluster: Cluster, pairs: Sequence[Integers]) -> Routed:
    """Return what the routes of each of some sets of pairs, shape (pairs, 2), use."""
    return remembered(cluster, "routed", pairs, lambda of: _routed(of, pairs))


def _routed(cluster: Cluster, pairs: Sequence[Integers]) -> Routed:
    routes = [cluster.routes(some) for some in pairs]
    delays = [cluster.longest(some) for some in routes]
    used = [np.concatenate([NONE, *(block.ravel() for block in some)]) for some in routes]
    del routes
    total = len(cluster.capacity)
    if sum(map(len, used)) <= max(total // FEW, MANY):
        links = np.unique(np.concatenate(used))
        uses = [np.bincount(np.searchsorted(links, of), minlength=len(links)) for of in used]
        return Routed(links, None, uses, delays)
    counts = [np.bincount(of, minlength=total) for of in used]
    links = np.flatnonzero(np.logical_or.reduce(counts)).astype(np.int32)
    uses = [count[links] for count in counts]
    classes = _classes(cluster.sorts[links], uses)
    return Routed(links, classes, [of[classes.first] for of in uses], delays)


def _classes(sort: Integers, uses: Sequence[Integers]) -> Classes:
    """Return the classes of links of one sort and with the same uses."""
    out = by_code(sort, int(sort.max()))
    for of in uses:
        each = int(of.max()) + 1
        out = by_code(out.of.astype(np.int64) * each + of, len(out.first) * each)
    return out
