"""A proof of which links of a network can never limit what runs on it."""

from __future__ import annotations

from collections.abc import Hashable, Set

import numpy as np
from numpy.typing import NDArray

from sim.machine.wires import Wires

Node = Hashable
Link = tuple[Node, Node]


def limiting(network: Wires) -> NDArray[np.bool_]:
    """Return whether each link can ever hold a communication back, shape (links,).

    See :attr:`Cluster.limiting`. No route turns round at a NIC, which only passes on.
    """
    nics = {node for node in network if network.nodes[node].get("tier") == "nic"}
    links: list[tuple[Node, Node, float]] = list(network.edges(data="bandwidth"))
    ends = [_ends(u, v, bool(edge.get("up")), nics) for u, v, edge in network.edges(data=True)]
    feeding, draining = _Side(), _Side()
    for (u, v, bandwidth), (start, end) in zip(links, ends, strict=True):
        feeding.add(end, (u, v), bandwidth)
        draining.add(start, (u, v), bandwidth)
    height = _height(network)
    out = np.ones(len(links), bool)
    for i in sorted(range(len(links)), key=lambda i: -height[links[i][0]] - height[links[i][1]]):
        u, v, bandwidth = links[i]
        start, end = ends[i]
        if feeding.within(start, (v, u), bandwidth) or draining.within(end, (v, u), bandwidth):
            out[i] = False
            feeding.drop(end, (u, v))
            draining.drop(start, (u, v))
    return out


def _ends(u: Node, v: Node, up: bool, nics: Set[Node]) -> tuple[Node, Node]:
    """Return both ends of a link, with a NIC's upward and downward half as separate nodes."""
    return (u, up) if u in nics else u, (v, up) if v in nics else v


class _Side:
    """Per node, the links on one side of it, and those among them that were left out."""

    def __init__(self) -> None:
        self._links: dict[Node, dict[Link, float]] = {}
        self._total: dict[Node, float] = {}
        self._missing: dict[Node, set[Link]] = {}

    def add(self, node: Node, link: Link, bandwidth: float) -> None:
        self._links.setdefault(node, {})[link] = bandwidth
        self._total[node] = self._total.get(node, 0.0) + bandwidth

    def drop(self, node: Node, link: Link) -> None:
        self._missing.setdefault(node, set()).add(link)

    def within(self, node: Node, back: Link, bandwidth: float) -> bool:
        """Return whether all links on this side, except the one back, are in and together fit."""
        if isinstance(node, int):
            return False  # bytes start and end at GPUs
        missing = self._missing.get(node, ())
        whole = len(missing) == (back in missing)
        back_bandwidth = self._links.get(node, {}).get(back, 0.0)
        return whole and self._total.get(node, 0.0) - back_bandwidth <= bandwidth * (1 + 1e-12)


def _height(network: Wires) -> dict[Node, int]:
    """Return how many links each node is away from the nearest GPU."""
    out: dict[Node, int] = {}
    layer: set[Node] = {node for node in network if isinstance(node, int)}
    height = 0
    while layer:
        out |= dict.fromkeys(layer, height)
        layer = {other for node in layer for other in network[node] if other not in out}
        height += 1
    return out
