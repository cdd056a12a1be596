"""The links of a machine, such as GPU to NVSwitch or NIC to leaf, and how fast each kind is."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.machine import fabric
from sim.machine.wires import Wires

if TYPE_CHECKING:
    import networkx as nx

Node = Hashable
Cable = tuple[Node, Node]  # both ends, the one nearer to the GPUs first

WORDS = {
    "gpu": "GPU",
    "nvswitch": "NVSwitch",
    "nvlink bridge": "NVLink bridge",
    "pcie": "PCIe",
    "pcie switch": "PCIe switch",
    "nic": "NIC",
    "xgmi switch": "xGMI mesh",
    "nvlink_mesh switch": "NVLink mesh",
}
"""The names of tiers for people, where they differ from those in the network."""


_INSIDE = 1000  # tiers inside a node at most


class Kind(NamedTuple):
    """Links of the same sort and speed."""

    between: str
    bandwidth: float  # B/s each way, effective
    latency: float  # seconds


def tier(network: Wires | nx.DiGraph[Any], node: Node) -> str:
    """Return what a node of the network is, such as "gpu", "nic" or "leaf"."""
    return str(network.nodes[node].get("tier", "gpu" if isinstance(node, int) else "switch"))


def height(network: Wires | nx.DiGraph[Any], node: Node) -> int:
    """Return the height of a node above the GPUs: 0 for a GPU, below 0 inside a machine."""
    return int(network.nodes[node].get("height", 0 if isinstance(node, int) else 1))


def kind(network: Wires, link: Cable) -> fabric.Kind:
    """Return what a link is, and by which names edits call it."""
    edge = network.edges[link]
    return fabric.Kind(edge["kind"], edge["names"]) if "kind" in edge else fabric.UNNAMED


def by_kind(network: Wires) -> dict[Kind, list[Cable]]:
    """Return the cables of each kind, from the GPUs outwards; both directions are one cable."""
    out: dict[Kind, dict[Cable, None]] = {}
    for u, v, data in network.edges(data=True):
        cable = (u, v) if _order(network, u) <= _order(network, v) else (v, u)
        if tier(network, u) == tier(network, v) and network.has_edge(v, u):
            cable = min((u, v), (v, u), key=str)
        words = [tier(network, node) for node in cable]
        between = " - ".join(WORDS.get(word, word) for word in words)
        kind = Kind(between, float(data["bandwidth"]), float(data["latency"]))
        out.setdefault(kind, {})[cable] = None

    def near_first(kind: Kind) -> tuple[int, int, float, float]:
        near, far = (_order(network, node) for node in next(iter(out[kind])))
        return near, far, -kind.bandwidth, kind.latency

    return {kind: list(out[kind]) for kind in sorted(out, key=near_first)}


def _order(network: Wires, node: Node) -> int:
    """Return a key that sorts GPUs first, then switches inside nodes, then NICs and those above."""
    at = height(network, node)
    return -at if at <= 0 else at + _INSIDE
