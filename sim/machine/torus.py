"""Tori: a router per node, joined to its two neighbours along each dimension, ends included.

A message goes along one dimension after the other, the shorter way round; halfway round it goes
up. (Dally and Seitz 1987, "Deadlock-Free Message Routing", call it dimension order.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

Table = dict[str, Any]


class Router(NamedTuple):
    """The place of a router: its coordinates, the last of which counts up fastest over nodes."""

    at: tuple[int, ...]

    def __str__(self) -> str:
        return f"router {'.'.join(map(str, self.at))}"


def router(fabric: Table, node: int) -> Router:
    """Return the router of a node.

    >>> router({"shape": "2x3x4"}, 17)
    Router(at=(1, 1, 1))
    """
    at = []
    for size in reversed(shape(fabric)):
        node, place = divmod(node, size)
        at.append(place)
    return Router(tuple(reversed(at)))


def cables(fabric: Table) -> Iterator[tuple[Router, Router, float]]:
    """Yield both ends and the nominal B/s each way of the cables between all routers."""
    sizes = shape(fabric)
    for at in product(*map(range, sizes)):
        for axis, size in enumerate(sizes):
            if size > 2 or at[axis] + 1 < size:
                beside = _moved(at, axis, 1, size)
                yield Router(at), Router(beside), fabric["link_bandwidth"]


def path(fabric: Table, a: Router, b: Router) -> list[Router]:
    """Return the routers from one to another.

    >>> [str(at) for at in path({"shape": "4x5"}, Router((0, 4)), Router((2, 1)))]
    ['router 0.4', 'router 1.4', 'router 2.4', 'router 2.0', 'router 2.1']
    """
    out, at = [a], a.at
    for axis, size in enumerate(shape(fabric)):
        ahead = (b.at[axis] - at[axis]) % size
        up = ahead <= size - ahead
        for _ in range(ahead if up else size - ahead):
            at = _moved(at, axis, 1 if up else -1, size)
            out.append(Router(at))
    return out


def shape(fabric: Table) -> tuple[int, ...]:
    """Return the number of nodes along each dimension."""
    return tuple(map(int, fabric["shape"].split("x")))


def room(fabric: Table) -> int:
    """Return how many nodes there are."""
    return prod(shape(fabric))


def _moved(at: tuple[int, ...], axis: int, by: int, size: int) -> tuple[int, ...]:
    return (*at[:axis], (at[axis] + by) % size, *at[axis + 1 :])
