"""Dragonflies: routers in groups, each joined to all of its group, and each group to all others.

Kim, Dally, Scott and Abts 2008, "Technology-Driven, Highly-Scalable Dragonfly Topology". A message
takes the direct way: to the router of its group that has the link to the other group, over it, and
on to the router of its end. Group g is joined to group h at its router h modulo the routers of a
group. A group whose routing spreads over all links inside is given as one router.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, groupby
from math import comb
from typing import Any, NamedTuple

from schedules.input_error import InputError

Table = dict[str, Any]

MOST_CABLES = 500_000


class Router(NamedTuple):
    """The place of a router."""

    group: int
    number: int  # in its group

    def __str__(self) -> str:
        return f"router {self.group}.{self.number}"


def router(fabric: Table, node: int) -> Router:
    """Return the router above a node."""
    return Router(*divmod(node // fabric["nodes_per_leaf"], _size(fabric)))


def cables(fabric: Table, nodes: int) -> Iterator[tuple[Router, Router, float]]:
    """Yield both ends and the nominal B/s each way of the cables between routers of ``nodes``.

    Raises InputError for more than can be simulated.
    """
    size, groups = _size(fabric), router(fabric, nodes - 1).group + 1
    count = groups * comb(size, 2) + comb(groups, 2)
    if count > MOST_CABLES:
        raise InputError(
            f"a dragonfly of {groups:,} groups of {size:,} routers has {count:,} cables, and "
            f"{MOST_CABLES:,} can be simulated; other nodes_per_leaf and leaves_per_group would do"
        )
    for group in range(groups):
        for a, b in combinations(range(size), 2):
            yield Router(group, a), Router(group, b), fabric["local_bandwidth"]
    for g, h in combinations(range(groups), 2):
        yield Router(g, h % size), Router(h, g % size), fabric["global_bandwidth"]


def path(fabric: Table, a: Router, b: Router) -> list[Router]:
    """Return the routers from one to another, at most two of each group.

    >>> table = {"nodes_per_leaf": 1, "leaves_per_group": 4}
    >>> [str(at) for at in path(table, Router(0, 2), Router(5, 3))]
    ['router 0.2', 'router 0.1', 'router 5.0', 'router 5.3']
    """
    size = _size(fabric)
    doors = [Router(a.group, b.group % size), Router(b.group, a.group % size)]
    return [at for at, _ in groupby([a, *(doors if a.group != b.group else []), b])]


def _size(fabric: Table) -> int:
    """Return the number of routers of a group."""
    return int(fabric.get("leaves_per_group", 1))
