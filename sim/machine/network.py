"""How fast each communication moves when several share links: max-min fairness, nothing else.

The solver is one pure function over flat sequences, so that every engine calls the same one. It
works on lists and on arrays alike, in plain scalar steps that give the same bits when compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Protocol, TypeVar

INFINITY = math.inf
T_co = TypeVar("T_co", covariant=True)


class Vector(Protocol[T_co]):
    """A list or one-dimensional array that is read by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> T_co: ...


class Cells(Protocol):
    """A list or array of floats that is read and written by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> float: ...
    def __setitem__(self, i: int, value: float, /) -> None: ...


class Places(Protocol):
    """A list or array of integers that is read and written by index."""

    def __getitem__(self, i: int, /) -> int: ...
    def __setitem__(self, i: int, value: int, /) -> None: ...


def fair_rates(
    flow_start: Vector[int],
    link_of: Vector[int],
    coefficient: Vector[float],
    capacity: Vector[float],
    speed: Cells,
    used: Cells,
    level: Cells,
    floor: Cells,
    alive: Places,
) -> None:
    """Write the max-min fair speed of each flow, in B/s, into ``speed``, shape (n,).

    Flow f loads the links ``link_of[flow_start[f]:flow_start[f + 1]]`` (n + 1 starts; links are 0
    .. m-1) with ``coefficient`` (one per entry of ``link_of``) times its speed, which is that on
    its own most loaded link. ``capacity`` (m) is in B/s. ``used``, ``level``, ``floor`` (m) and
    ``alive`` (n) are workspace.

    All flows rise together until a link is full. The flows on all links that are full at that very
    level keep it, and the others rise on. A level never falls below that of a flow already settled
    on the link, which in exact arithmetic it could not. A flow without any load has infinite speed.

    The speeds in one connected component depend on nothing outside it, to the last bit: each sum
    runs over a single link's flows, in flow order.
    """
    links, living = len(capacity), len(speed)
    for f in range(living):
        alive[f] = f
    for link in range(links):
        used[link] = 0.0
        floor[link] = 0.0
    while living:
        lowest = _lowest(
            flow_start, link_of, coefficient, capacity, used, level, floor, alive, living, links
        )
        living = _settle(
            flow_start, link_of, coefficient, speed, used, level, floor, alive, living, lowest
        )


def _lowest(
    flow_start: Vector[int],
    link_of: Vector[int],
    coefficient: Vector[float],
    capacity: Vector[float],
    used: Cells,
    level: Cells,
    floor: Cells,
    alive: Places,
    living: int,
    links: int,
) -> float:
    """Return the level at which the first links fill up; write each link's level into ``level``."""
    for link in range(links):
        level[link] = 0.0
    for i in range(living):
        f = alive[i]
        for k in range(flow_start[f], flow_start[f + 1]):
            level[link_of[k]] += coefficient[k]
    lowest = INFINITY
    for link in range(links):
        if level[link] > 0.0:
            reached = (capacity[link] - used[link]) / level[link]
            if reached < floor[link]:
                reached = floor[link]
            level[link] = reached
            if reached < lowest:
                lowest = reached
    return lowest


def _settle(
    flow_start: Vector[int],
    link_of: Vector[int],
    coefficient: Vector[float],
    speed: Cells,
    used: Cells,
    level: Cells,
    floor: Cells,
    alive: Places,
    living: int,
    lowest: float,
) -> int:
    """Give all flows on links that fill at ``lowest`` their speed; return how many still rise."""
    rising = 0
    for i in range(living):
        f = alive[i]
        first, last = flow_start[f], flow_start[f + 1]
        settled = lowest == INFINITY
        for k in range(first, last):
            if coefficient[k] > 0.0 and level[link_of[k]] == lowest:
                settled = True
                break
        if not settled:
            alive[rising] = f
            rising += 1
            continue
        speed[f] = lowest
        for k in range(first, last):
            if coefficient[k] > 0.0 and lowest != INFINITY:
                used[link_of[k]] += coefficient[k] * lowest
                floor[link_of[k]] = lowest
    return rising


def rates(flows: Sequence[Mapping[int, float]], capacity: Mapping[int, float]) -> list[float]:
    """Return the speed of each flow, given as the bytes that it puts on each link, for small cases.

    >>> rates([{0: 8.0}, {0: 8.0, 1: 4.0}, {1: 5.0}], {0: 1.0, 1: 2.0})
    [0.5, 0.5, 1.75]
    """
    known = sorted({link for flow in flows for link in flow})
    row = {link: i for i, link in enumerate(known)}
    start, link_of, coefficient = [0], [], []
    for flow in flows:
        most = max(flow.values(), default=0.0)
        for link in sorted(flow):
            link_of.append(row[link])
            coefficient.append(flow[link] / most if most else 0.0)
        start.append(len(link_of))
    speed: MutableSequence[float] = [0.0] * len(flows)
    used, level, floor = ([0.0] * len(known) for _ in range(3))
    room, alive = [capacity[link] for link in known], [0] * len(flows)
    fair_rates(start, link_of, coefficient, room, speed, used, level, floor, alive)
    return list(speed)
