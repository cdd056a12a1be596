"""Building a cluster's network from a topology, and proving which of its links can never limit.

Going outwards from a GPU: its node's NVSwitch on one side; on the other its NIC (which it may share
with its neighbours), a leaf switch, a spine and a core. Switches of one tier that stand side by
side are one node, and the cables between two such nodes are one link each way with their total
capacity.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError

Node = Hashable
Link = tuple[Node, Node]
Spec = dict[str, Any]


def build(spec: Spec, gpus: int) -> tuple[nx.DiGraph[Any], dict[Node, Node]]:
    """The network of so many GPUs, and from each GPU, NIC or switch the next one towards the core.

    Raises InputError when the NICs cannot be shared evenly among a node's GPUs.
    """
    network: nx.DiGraph[Any] = nx.DiGraph()
    network.add_nodes_from(range(gpus))
    per_node, nic = spec["node"]["gpus"], spec["node"]["nic"]
    uplink: dict[Node, Node] = {}
    if per_node % nic["count"]:
        raise InputError(
            f"topology {spec['name']!r}: {nic['count']} NICs cannot be shared evenly by "
            f"{per_node} GPUs; node.nic.count must divide node.gpus"
        )
    for gpu in range(gpus):
        _cable(network, gpu, f"nvswitch {gpu // per_node}", **_edge(spec["node"]["link"]))
    if gpus <= per_node:
        return network, {}
    port = _edge(nic)
    hop = {**port, "latency": spec["fabric"]["latency"]}
    for gpu in range(gpus):
        node, local = divmod(gpu, per_node)
        rail = local * nic["count"] // per_node
        tiers = _tiers(spec, node, rail, -(-gpus // per_node))
        uplink[gpu] = f"nic {node}.{rail}"
        _cable(network, gpu, uplink[gpu], **port)
        _climb(network, uplink, [uplink[gpu], *tiers], hop, _trunks(spec, port["bandwidth"]))
    return network, uplink


def _edge(cable: dict[str, float]) -> dict[str, float]:
    efficiency = cable.get("efficiency", 1.0)
    return {
        "bandwidth": cable["bandwidth"] * efficiency,
        "latency": cable["latency"],
        "efficiency": efficiency,
    }


def _cable(network: nx.DiGraph[Any], a: Node, b: Node, **link: float) -> None:
    network.add_edge(a, b, **link)
    network.add_edge(b, a, **link)


def _climb(
    network: nx.DiGraph[Any],
    uplink: dict[Node, Node],
    path: list[Node],
    hop: dict[str, float],
    bandwidths: list[float],
) -> None:
    """Lay the cables from a NIC up, as far as they do not lie there already."""
    for below, above, bandwidth in zip(path, path[1:], bandwidths, strict=False):
        if below in uplink:
            return
        uplink[below] = above
        _cable(network, below, above, **{**hop, "bandwidth": bandwidth})


def _tiers(spec: Spec, node: int, rail: int, nodes: int) -> list[str]:
    """The switches above a NIC, leaf first, as far as so many nodes need them."""
    fabric = spec["fabric"]
    if fabric["kind"] == "switch":
        return ["switch"]
    leaf = f"leaf {node // fabric['nodes_per_leaf']}"
    leaf += f".{rail}" if fabric["kind"] == "rail" else ""
    if nodes <= fabric["nodes_per_leaf"] and fabric["kind"] == "fat_tree":
        return [leaf]
    if nodes <= fabric.get("nodes_per_spine", nodes):
        return [leaf, "spine 0"]
    return [leaf, f"spine {node // fabric['nodes_per_spine']}", "core"]


def _trunks(spec: Spec, port: float) -> list[float]:
    """B/s each way of a NIC's link to its switch, of leaf to spine, and of spine to core."""
    fabric, count = spec["fabric"], spec["node"]["nic"]["count"]
    out = port / fabric.get("oversubscription", 1.0)
    at_leaf = fabric.get("nodes_per_leaf", 0) * (count if fabric["kind"] == "fat_tree" else 1)
    return [port, at_leaf * out, fabric.get("nodes_per_spine", 0) * count * out]


def limiting(network: nx.DiGraph[Any], uplink: Mapping[Node, Node]) -> NDArray[np.bool_]:
    """Per link, whether it can ever hold a communication back; see :attr:`Cluster.limiting`.

    A NIC (where ``uplink`` leads from a GPU) only passes on: no route turns round there.
    """
    nics = {above for below, above in uplink.items() if isinstance(below, int)}
    links: list[tuple[Node, Node, float]] = list(network.edges(data="bandwidth"))
    feeding, draining = _Side(), _Side()
    for u, v, bandwidth in links:
        start, end = _ends(u, v, nics)
        feeding.add(end, (u, v), bandwidth)
        draining.add(start, (u, v), bandwidth)
    height = _height(network)
    out = np.ones(len(links), bool)
    for i in sorted(range(len(links)), key=lambda i: -height[links[i][0]] - height[links[i][1]]):
        u, v, bandwidth = links[i]
        start, end = _ends(u, v, nics)
        if feeding.within(start, (v, u), bandwidth) or draining.within(end, (v, u), bandwidth):
            out[i] = False
            feeding.drop(end, (u, v))
            draining.drop(start, (u, v))
    return out


def _ends(u: Node, v: Node, nics: Set[Node]) -> tuple[Node, Node]:
    """Both ends of a link, with the upward and the downward half of a NIC as nodes of their own."""
    up = isinstance(u, int) or (u in nics and not isinstance(v, int))
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
        """Whether all links on this side, but for the one going back, are in and together fit."""
        if isinstance(node, int):
            return False  # GPUs make the bytes and take them
        missing = self._missing.get(node, ())
        whole = len(missing) == (back in missing)
        back_bandwidth = self._links.get(node, {}).get(back, 0.0)
        return whole and self._total.get(node, 0.0) - back_bandwidth <= bandwidth * (1 + 1e-12)


def _height(network: nx.DiGraph[Any]) -> dict[Node, int]:
    """How many links each node is away from the nearest GPU."""
    gpus = {node for node in network if isinstance(node, int)}
    layers = nx.bfs_layers(network, gpus)
    return {node: height for height, layer in enumerate(layers) for node in layer}
