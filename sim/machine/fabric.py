"""Building a cluster's network from a topology.

From a GPU outwards there are the switches inside its node (:mod:`sim.machine.tiers`) on one side,
and on the other its NIC (which it may share with its neighbours), a leaf switch, a spine and a
core, or a router of a dragonfly (:mod:`sim.machine.dragonfly`) or torus (:mod:`sim.machine.torus`),
from which routes go on to another router. Parallel switches of one tier are one node of the graph,
and the cables between two such nodes are one link each way with their total capacity.

The edge of each link gives its ``kind``, the ``names`` by which an edit may call it, and whether it
leads ``up``, away from the GPUs. Each node has its ``tier``, a ``label`` for drawings and its
``height``: 0 for a GPU, 1, 2, ... from the NICs up, -1, -2, ... inside a node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.machine import dragonfly, torus
from sim.machine.columns import Columns
from sim.machine.laid import Laid, Rung, lay
from sim.machine.paths import Paths
from sim.machine.tiers import GPU, Tier, inside, nic_below
from sim.machine.wires import Wires

Node = Hashable
Integers = NDArray[np.int64]
Spec = dict[str, Any]
Way = tuple[Node, ...]  # from a GPU up, itself included
Between = Callable[[Node, Node], Sequence[Node]]


class Kind(NamedTuple):
    """The kind of a link."""

    kind: str
    names: tuple[str, ...]  # names by which what-ifs call it


TO_NIC = Kind("pcie", ("pcie", "nic", "ib"))
PORT = Kind("ib", ("nic", "ib"))  # from a NIC to its switch
TRUNK = Kind("fabric", ("fabric", "ib"))  # between switches
UNNAMED = TRUNK
"""The kind of links in a network that was not built here and does not give any."""


class Wiring(NamedTuple):
    """A network, and what routes in it follow."""

    network: Wires
    ways: Mapping[int, tuple[Way, ...]]
    """Each GPU's ways up in the order of preference; the k-th ways of two GPUs lead through the
    same tiers. Two GPUs talk over the first way on which they meet."""
    between: Between | None
    """The nodes from one router to another, both included, where ways end at routers."""


def wired(spec: Spec, gpus: int) -> Wiring:
    """Return what :func:`build` does, but lay the cables of a tree only when they are asked for.

    Raises InputError as it does.
    """
    if gpus < FEW or spec["fabric"]["kind"] in _ROUTERS:
        return build(spec, gpus)
    build(spec, 1)  # which refuses what cannot be built
    whole = cache(lambda: build(spec, gpus))
    network = Laid(lambda: whole().network, *_laid(spec, gpus))
    return Wiring(network, _Later(gpus, whole), None)


FEW = 256
"""Cables of fewer GPUs are laid at once."""


class _Later(Mapping[int, tuple[Way, ...]]):
    """The ways of GPUs, which are laid when they are asked for."""

    def __init__(self, gpus: int, whole: Callable[[], Wiring]) -> None:
        self._gpus, self._whole = gpus, whole

    def __getitem__(self, gpu: int) -> tuple[Way, ...]:
        return self._whole().ways[gpu]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._gpus))

    def __len__(self) -> int:
        return self._gpus


def _laid(spec: Spec, gpus: int) -> tuple[Columns, Paths, Integers, Integers]:
    """Return the links and ways of a tree as :func:`sim.machine.laid.lay` does."""
    per_node = spec["node"]["gpus"]
    node, place = np.divmod(np.arange(gpus), per_node)
    tiers, rungs, ways = inside(spec), list[Rung](), {GPU: [GPU]}
    for tier in tiers:
        at = node * (per_node // tier.gpus) + place // tier.gpus
        rungs.append(Rung(tier.name, tier.below, at, tier.kind, _edge(tier.cable), outside=False))
        ways[tier.name] = [*ways[tier.below], tier.name]
    over = [ways[tier.name] for tier in tiers]
    if gpus > per_node:
        up = _rungs(spec, node, place)
        rungs += up
        over.append([*ways[nic_below(spec)], *(rung.above for rung in up)])
    return lay(gpus, rungs, over)


def _rungs(spec: Spec, node: Integers, place: Integers) -> list[Rung]:
    """Return the rungs from the NICs up, given each GPU's node and its place there."""
    nic, fabric = spec["node"]["nic"], spec["fabric"]
    rail = place * nic["count"] // spec["node"]["gpus"]
    names = [name for name, _ in _tiers(spec, 0, 0, int(node[-1]) + 1)]
    rails = fabric.get("rails", nic["count"]) if fabric["kind"] == "rail" else 1
    places = {
        "leaf": node // fabric.get("nodes_per_leaf", 1) * rails + rail % rails,
        "spine": node // fabric["nodes_per_spine"] if "core" in names else 0 * node,
    }
    port = _edge(nic)
    hop = {**port, "latency": fabric["latency"]}
    out = [
        Rung("nic", nic_below(spec), node * nic["count"] + rail, TO_NIC.kind, port, outside=True)
    ]
    for name, bandwidth, kind in zip(
        names, _trunks(spec, port), (PORT, TRUNK, TRUNK), strict=False
    ):
        link = {**hop, "bandwidth": bandwidth}
        at = places.get(name, 0 * node)
        out.append(Rung(name, out[-1].above, at, kind.kind, link, outside=True))
    return out


def build(spec: Spec, gpus: int) -> Wiring:
    """Return the network of ``gpus`` GPUs, and what routes in it follow.

    Raises InputError when the NICs cannot be shared evenly among a node's GPUs, or the tiers inside
    a node do not join its GPUs.
    """
    network = Wires()
    for gpu in range(gpus):
        network.add_node(gpu, tier=GPU, height=0)
    per_node, nic = spec["node"]["gpus"], spec["node"]["nic"]
    if per_node % nic["count"]:
        raise InputError(
            f"topology {spec['name']!r}: {nic['count']} NICs cannot be shared evenly by "
            f"{per_node} GPUs; node.nic.count must divide node.gpus"
        )
    tiers = inside(spec)
    within = [_within(network, tiers, gpu, per_node) for gpu in range(gpus)]
    ways = {gpu: tuple(way[tier.name] for tier in tiers) for gpu, way in enumerate(within)}
    if gpus <= per_node:
        return Wiring(network, ways, None)
    below, nodes = nic_below(spec), -(-gpus // per_node)
    for gpu, way in enumerate(within):
        ways[gpu] += (_outwards(network, spec, gpu, way[below], nodes),)
    return Wiring(network, ways, _routers(network, spec, nodes))


def _within(network: Wires, tiers: list[Tier], gpu: int, per_node: int) -> dict[str, Way]:
    """Lay a GPU's cables inside its node, and return its way to each tier."""
    ways: dict[str, Way] = {GPU: (gpu,)}
    node, place = divmod(gpu, per_node)
    for depth, tier in enumerate(tiers, 1):
        number = f"{node}" if tier.gpus == per_node else f"{node}.{place // tier.gpus}"
        way = (*ways[tier.below], f"{tier.switch} {number}")
        network.add_node(way[-1], tier=tier.switch, height=-depth, label=number)
        _cable(network, way[-2], way[-1], Kind(tier.kind, (tier.kind,)), _edge(tier.cable))
        ways[tier.name] = way
    return ways


def _outwards(network: Wires, spec: Spec, gpu: int, below: Way, nodes: int) -> Way:
    """Lay the cables from a GPU or its switch to the NIC and up, and return the GPU's way."""
    nic = spec["node"]["nic"]
    node, place = divmod(gpu, spec["node"]["gpus"])
    rail = place * nic["count"] // spec["node"]["gpus"]
    port = _edge(nic)
    switches = [("nic", f"{node}.{rail}"), *_tiers(spec, node, rail, nodes)]
    way = tuple(f"{tier} {number}".rstrip() for tier, number in switches)
    for height, (name, (tier, number)) in enumerate(zip(way, switches, strict=True), 1):
        network.add_node(name, tier=tier, height=height, label=number or tier)
    network.add_node(way[0], label=f"{rail}")
    _cable(network, below[-1], way[0], TO_NIC, port)
    _climb(network, way, {**port, "latency": spec["fabric"]["latency"]}, _trunks(spec, port))
    return (*below, *way)


def _edge(cable: dict[str, float]) -> dict[str, float]:
    efficiency = cable.get("efficiency", 1.0)
    return {
        "bandwidth": cable["bandwidth"] * efficiency,
        "latency": cable["latency"],
        "efficiency": efficiency,
    }


def _cable(network: Wires, below: Node, above: Node, of: Kind, link: dict[str, float]) -> None:
    network.add_edge(below, above, **link, **of._asdict(), up=True)
    network.add_edge(above, below, **link, **of._asdict(), up=False)


def _climb(
    network: Wires, way: tuple[str, ...], hop: dict[str, float], bandwidths: list[float]
) -> None:
    """Lay the cables from a NIC up that are not there already."""
    kinds = (PORT, TRUNK, TRUNK)
    for (below, above), bandwidth, kind in zip(pairwise(way), bandwidths, kinds, strict=False):
        if network.has_edge(below, above):
            return
        _cable(network, below, above, kind, {**hop, "bandwidth": bandwidth})


def _tiers(spec: Spec, node: int, rail: int, nodes: int) -> list[tuple[str, str]]:
    """Return the switches above a NIC, leaf first, up to the tier that joins all nodes."""
    fabric = spec["fabric"]
    if fabric["kind"] == "switch":
        return [("switch", "")]
    if fabric["kind"] in _ROUTERS:
        return [("router", str(_ROUTERS[fabric["kind"]].router(fabric, node)).partition(" ")[2])]
    rails = fabric.get("rails", spec["node"]["nic"]["count"])
    of_rail = f".{rail % rails}" if fabric["kind"] == "rail" else ""
    leaf = "leaf", f"{node // fabric['nodes_per_leaf']}{of_rail}"
    if nodes <= fabric["nodes_per_leaf"] and fabric["kind"] == "fat_tree":
        return [leaf]
    if nodes <= fabric.get("nodes_per_spine", nodes):
        return [leaf, ("spine", "0")]
    return [leaf, ("spine", f"{node // fabric['nodes_per_spine']}"), ("core", "")]


def _trunks(spec: Spec, port: dict[str, float]) -> list[float]:
    """Return the B/s each way from NIC to switch, from leaf to spine, and from spine to core."""
    fabric, count = spec["fabric"], spec["node"]["nic"]["count"]
    out = port["bandwidth"] / fabric.get("oversubscription", 1.0)
    rails = fabric.get("rails", count) if fabric["kind"] == "rail" else 1
    at_leaf = fabric.get("nodes_per_leaf", 0) * (count // rails)
    at_spine = fabric.get("nodes_per_spine", 0) * count / fabric.get("spine_oversubscription", 1.0)
    return [port["bandwidth"], at_leaf * out, at_spine * out]


_ROUTERS = {"dragonfly": dragonfly, "torus": torus}


def _routers(network: Wires, spec: Spec, nodes: int) -> Between | None:
    """Lay the cables between routers, and return which lie between two of them."""
    fabric, port = spec["fabric"], _edge(spec["node"]["nic"])
    kind = _ROUTERS.get(fabric["kind"])
    if kind is None:
        return None
    cables = torus.cables(fabric) if kind is torus else dragonfly.cables(fabric, nodes)
    places = {str(kind.router(fabric, node)): kind.router(fabric, node) for node in range(nodes)}
    for a, b, bandwidth in cables:
        for at in (a, b):
            name = str(at)
            network.add_node(name, tier="router", height=2, label=name.partition(" ")[2])
        link = {**port, "bandwidth": bandwidth * port["efficiency"], "latency": fabric["latency"]}
        _cable(network, str(a), str(b), TRUNK, link)
    return partial(_between, fabric, places)


def _between(fabric: dict[str, Any], places: dict[str, Any], a: Node, b: Node) -> list[Node]:
    path = _ROUTERS[fabric["kind"]].path(fabric, places[str(a)], places[str(b)])
    return [str(at) for at in path]
