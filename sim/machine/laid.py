"""The links of a tree of switches in columns, without laying one cable after another.

What :func:`sim.machine.fabric.build` lays, in the order in which it does: GPU by GPU the cables
inside its node, then GPU by GPU those from its NIC up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.machine.columns import Columns
from sim.machine.paths import Paths
from sim.machine.tiers import GPU
from sim.machine.wires import Wires

Integers = NDArray[np.int64]


class Laid(Wires):
    """Links that are known in columns, and laid one by one only when they are asked for."""

    def __init__(
        self,
        later: Callable[[], Wires],
        columns: Columns,
        paths: Paths,
        sorts: Integers,
        back: Integers,
    ) -> None:
        """Begin with the links, the ways, and for each link its rung and the link the other way."""
        super().__init__(later)
        self.columns, self.paths, self.sorts, self.back = columns, paths, sorts, back


@dataclass
class Rung:
    """The cables from each GPU's place on one tier to its place on the next."""

    above: str
    below: str
    place: Integers  # per GPU: the number of its switch on the tier above
    kind: str
    cable: Mapping[str, float]  # bandwidth in B/s, latency in s, efficiency
    outside: bool  # whether it is laid after all cables inside nodes
    link_up: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    link_down: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


def lay(
    gpus: int, rungs: Sequence[Rung], ways: Sequence[Sequence[str]]
) -> tuple[Columns, Paths, Integers, Integers]:
    """Return the links of these rungs, each GPU's ways, and each link's rung and the one back.

    ``rungs`` stand in the order in which they are laid for one GPU; ``ways`` has the tiers of each
    way, from "gpu" on.
    """
    number = {GPU: np.arange(gpus), **_numbers(gpus, rungs)}
    ends = [(number[rung.below], number[rung.above]) for rung in rungs]
    nodes = 1 + max(int(above.max()) for _, above in ends)
    cables = [below * nodes + above for below, above in ends]
    laid = [_first(cable) for cable in cables]
    rung = np.repeat(np.arange(len(rungs)), [len(at) for at in laid])
    cable = np.concatenate([of[at] for of, at in zip(cables, laid, strict=True)])
    below, above = np.divmod(cable, nodes)
    start, end = np.concatenate([below, above]), np.concatenate([above, below])
    when = np.concatenate([_when(gpus, rungs, k)[at] for k, at in enumerate(laid)])
    order = np.argsort(start * (int(when.max()) + 1) + np.tile(when, 2))
    link, back = np.empty((2, len(order)), np.int64)
    link[order] = np.arange(len(order))
    up, down = np.split(link, 2)
    back[up], back[down] = down, up
    _find(rungs, rung, cable, cables, (up, down))
    sides: dict[str, Any] = {"gpu": np.arange(nodes) < gpus, "nic": np.zeros(nodes, np.bool_)}
    sides["nic"][number.get("nic", [])] = True
    sort = np.tile(rung, 2)[order]
    facts = _facts(rungs, sort)
    of = Columns(start[order], end[order], up=order < len(rung), **facts, **sides)
    return of, _paths(gpus, {one.above: one for one in rungs}, ways), sort, back


def _find(
    rungs: Sequence[Rung],
    rung: Integers,
    cable: Integers,
    cables: Sequence[Integers],
    links: Sequence[Integers],
) -> None:
    """Note the links of each GPU on each rung.

    ``cable`` has the number of each cable, ``rung`` its rung and ``links`` both its links;
    ``cables`` has, for each rung, the number of each GPU's cable.
    """
    up, down = (of.astype(np.int32) for of in links)
    for k, one in enumerate(rungs):
        row = np.searchsorted(cable[rung == k], cables[k])
        one.link_up, one.link_down = up[rung == k][row], down[rung == k][row]


def _facts(rungs: Sequence[Rung], of: Integers) -> dict[str, Any]:
    """Return the bandwidth, latency, efficiency and kind of each link, given its rung."""
    keys = ("bandwidth", "latency", "efficiency")
    facts = {key: np.array([rung.cable[key] for rung in rungs])[of] for key in keys}
    return {**facts, "kind": np.array([rung.kind for rung in rungs], object)[of]}


def _first(switch: Integers) -> Integers:
    """Return the first GPU at each switch."""
    return np.unique(switch, return_index=True)[1]


def _when(gpus: int, rungs: Sequence[Rung], k: int) -> Integers:
    """Return for each GPU when its cable of the k-th rung is laid."""
    return (rungs[k].outside * gpus + np.arange(gpus)) * len(rungs) + k


def _numbers(gpus: int, rungs: Sequence[Rung]) -> dict[str, Integers]:
    """Return for each tier the number, among all nodes, of the switch of each GPU.

    Switches are numbered behind the GPUs, in the order in which they are laid.
    """
    firsts = [_first(rung.place) for rung in rungs]
    when = np.concatenate([_when(gpus, rungs, k)[at] for k, at in enumerate(firsts)])
    rank = np.empty(len(when), np.int64)
    rank[np.argsort(when)] = gpus + np.arange(len(when))
    out, begin = {}, 0
    for rung, at in zip(rungs, firsts, strict=True):
        row = np.searchsorted(rung.place[at], rung.place)
        out[rung.above] = rank[begin : begin + len(at)][row]
        begin += len(at)
    return out


def _paths(gpus: int, rungs: dict[str, Rung], ways: Sequence[Sequence[str]]) -> Paths:
    def stacked(columns: list[NDArray[np.int32]]) -> NDArray[np.int32]:
        return np.stack(columns, axis=1)

    nodes = [
        np.stack([np.arange(gpus), *(rungs[tier].place for tier in way[1:])], axis=1)
        for way in ways
    ]
    up = [stacked([rungs[tier].link_up for tier in way[1:]]) for way in ways]
    down = [stacked([rungs[tier].link_down for tier in way[1:]]) for way in ways]
    return Paths(nodes, up, down)
