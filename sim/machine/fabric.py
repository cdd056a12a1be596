"""Building a cluster's network from a topology.

Going outwards from a GPU: its node's NVSwitch on one side; on the other its NIC (which it may share
with its neighbours), a leaf switch, a spine and a core. Switches of one tier that stand side by
side are one node, and the cables between two such nodes are one link each way with their total
capacity.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import networkx as nx

from schedules.input_error import InputError

Node = Hashable
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
