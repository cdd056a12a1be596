"""Which links a machine has: GPU to NVSwitch, GPU to NIC, NIC to leaf, and how fast each is."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import networkx as nx

Node = Hashable
Cable = tuple[Node, Node]  # both ends, the one nearer to the GPUs first

WORDS = {"gpu": "GPU", "nvswitch": "NVSwitch", "nic": "NIC"}
"""Names of tiers, for people, where they differ from those in the network."""
_TIERS = ("gpu", "nvswitch", "nic", "leaf", "switch", "spine", "core")


class Kind(NamedTuple):
    """Links of the same sort and speed."""

    between: str
    bandwidth: float  # B/s each way, effective
    latency: float  # seconds


def tier(node: Node) -> str:
    """What a node of the network is.

    >>> tier(3), tier("nic 0.3"), tier("leaf 1.0")
    ('gpu', 'nic', 'leaf')
    """
    return "gpu" if isinstance(node, int) else str(node).partition(" ")[0]


def by_kind(network: nx.DiGraph[Any]) -> dict[Kind, list[Cable]]:
    """The cables of each kind, from the GPUs outwards; a link and its way back are one cable."""
    out: dict[Kind, dict[Cable, None]] = {}
    for u, v, data in network.edges(data=True):
        cable = (u, v) if _order(tier(u)) <= _order(tier(v)) else (v, u)
        if tier(u) == tier(v) and network.has_edge(v, u):
            cable = min((u, v), (v, u), key=str)
        between = " - ".join(WORDS.get(tier(node), tier(node)) for node in cable)
        kind = Kind(between, float(data["bandwidth"]), float(data["latency"]))
        out.setdefault(kind, {})[cable] = None
    ordered = sorted(out, key=lambda kind: _sorted_by(kind, next(iter(out[kind]))))
    return {kind: list(out[kind]) for kind in ordered}


def _sorted_by(kind: Kind, cable: Cable) -> tuple[int, int, float, float]:
    near, far = (_order(tier(node)) for node in cable)
    return near, far, -kind.bandwidth, kind.latency


def _order(name: str) -> int:
    return _TIERS.index(name) if name in _TIERS else len(_TIERS)
