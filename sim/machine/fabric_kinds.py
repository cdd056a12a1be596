"""The kinds of fabric between nodes, and which keys of [fabric] each of them takes."""

from __future__ import annotations

from typing import Any, Literal

from schedules.input_error import InputError
from sim.machine import torus

Table = dict[str, Any]

Kind = Literal["switch", "rail", "fat_tree", "dragonfly", "torus"]
MOST_NODES = 131_072  # of a torus
SHAPE = "[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){0,5}"
"""The pattern of a torus's shape."""
_TREE = ("nodes_per_spine", "oversubscription", "spine_oversubscription")
_ALL = ("kind", "latency", "source")
KEYS: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "switch": ((), ()),
    "rail": (("nodes_per_leaf",), (*_TREE, "rails")),
    "fat_tree": (("nodes_per_leaf",), _TREE),
    "dragonfly": (
        ("nodes_per_leaf", "global_bandwidth"),
        ("leaves_per_group", "local_bandwidth"),
    ),
    "torus": (("shape", "link_bandwidth"), ()),
}
"""By kind: the keys that it needs besides the latency, and those that it may have."""
KINDS = tuple(KEYS)


def merged(below: Table, above: Table) -> Table:
    """Return a base's [fabric] with the values of a file; another kind keeps only what it takes.

    >>> merged({"kind": "rail", "nodes_per_leaf": 4, "latency": "1 us"}, {"kind": "switch"})
    {'kind': 'switch', 'latency': '1 us'}
    """
    kind = above.get("kind", below.get("kind"))
    if kind == below.get("kind") or kind not in KINDS:
        return below | above
    known = (*_ALL, *KEYS[kind][0], *KEYS[kind][1])
    return {key: value for key, value in below.items() if key in known} | above


def check(fabric: Table, nics: int, where: str) -> None:
    """Refuse keys that do not suit the kind or each other; a node has ``nics``."""
    kind = fabric["kind"]
    needed, optional = KEYS[kind]
    strange = fabric.keys() - {"kind", "latency", "max_nodes", *needed, *optional}
    if strange:
        raise InputError(f"{where}: fabric of kind {kind!r} takes no {', '.join(sorted(strange))}")
    lacking = [key for key in needed if key not in fabric]
    if fabric.get("leaves_per_group", 1) > 1 and "local_bandwidth" not in fabric:
        lacking.append("local_bandwidth")
    if lacking:
        raise InputError(f"{where}: fabric of kind {kind!r} needs {lacking[0]!r}")
    if nics % fabric.get("rails", 1):
        raise InputError(
            f"{where}: fabric.rails is {fabric['rails']}; it must divide node.nic.count = {nics}"
        )
    leaf, spine = fabric.get("nodes_per_leaf", 1), fabric.get("nodes_per_spine", 0)
    if spine % leaf:
        raise InputError(
            f"{where}: fabric.nodes_per_spine is {spine}; it must be a multiple of "
            f"fabric.nodes_per_leaf = {leaf}"
        )
    if kind == "torus" and torus.room(fabric) > MOST_NODES:
        raise InputError(f"{where}: fabric.shape has more than {MOST_NODES:,} nodes")
