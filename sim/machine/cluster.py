"""The cluster: what its GPUs can do, the links between them, and the routes over those links.

The network is a graph whose nodes are the GPUs 0, 1, ... and named switches; a full-duplex cable is
two edges. Links are known by their index, so capacities and loads are plain arrays.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.graph import Bools, Floats, Ints, Longs
from sim.late import nx
from sim.machine import fabric, limits
from sim.machine.assumed import assumed
from sim.machine.classes import by_code, one_row
from sim.machine.columns import Columns, columns, sorts
from sim.machine.hashes import Hashes, mixed
from sim.machine.laid import Laid
from sim.machine.paths import Paths, of_ways
from sim.machine.topology import Table, read, room
from sim.machine.wires import Wires, to_networkx

Node = Hashable
Link = tuple[Node, Node]  # from one end to the other
FEW = 64
"""The latencies of so many routes are added up one by one."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    sms: int
    memory: float  # bytes
    memory_bandwidth: float  # B/s
    peak: Mapping[str, float]  # FLOP/s by dtype, dense
    host_bandwidth: float | None = None  # B/s to the host's memory, each way
    host_memory_bandwidth: float | None = None  # B/s of the host's memory, this GPU's share of it
    costs: Mapping[str, Any] = field(default_factory=dict)
    """The fitted tables of the topology file, in SI units."""
    spread: float = 0.0
    """Sigma of the speeds that like GPUs sustain, as a share; see :mod:`sim.machine.spread`."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """GPUs 0 .. n-1 and switches, joined by links.

    Edges of ``network`` carry ``bandwidth`` (B/s, effective: nominal times efficiency), ``latency``
    (s) and optionally ``efficiency``, and the attributes that :mod:`sim.machine.fabric` gives them.
    Ranks of one node are neighbours: node k holds the GPUs from k times ``gpus_per_node`` on.
    """

    name: str
    gpu: Gpu
    network: Wires
    gpus_per_node: int
    collectives: Mapping[str, Any] = field(default_factory=dict)
    """Fitted constants of collectives, in SI units; see :mod:`sim.machine.collectives`."""
    ways: Mapping[int, Sequence[tuple[Node, ...]]] = field(default_factory=dict)
    """The ways of each GPU up, itself included, in the order in which routes prefer them: over each
    tier of switches inside its node, then over its NIC. If they are known, routes follow them; if
    not, routes are searched for."""
    between: fabric.Between | None = None
    """The nodes from one router to another, for GPUs whose ways do not meet."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """The topology from which constants of each family come that were not measured on this machine;
    see :mod:`sim.machine.provenance`."""
    healthy: Cluster | None = None
    """The cluster without slow links, if these are slow: there algorithms are chosen and latencies
    taken."""

    @cached_property
    def graph(self) -> nx.DiGraph[Any]:
        """The network as a graph of networkx, for paths and drawings."""
        return to_networkx(self.network)

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs."""
        return int(self.columns.gpu.sum())

    @cached_property
    def columns(self) -> Columns:
        """The links of the network in columns."""
        return self.network.columns if isinstance(self.network, Laid) else columns(self.network)

    @cached_property
    def links(self) -> list[Link]:
        """Both ends of each link, by link index."""
        return list(self.network.edges)

    @cached_property
    def index(self) -> dict[Link, int]:
        """Index of each link by its two ends."""
        return {link: i for i, link in enumerate(self.links)}

    @cached_property
    def capacity(self) -> Floats:
        """Most B/s that each link carries, shape (links,)."""
        return self.columns.bandwidth

    @cached_property
    def efficiency(self) -> Floats:
        """Share of its nominal bandwidth that each link's capacity is, shape (links,)."""
        return self.columns.efficiency

    @cached_property
    def delay(self) -> Floats:
        """Seconds that each link adds, shape (links,)."""
        return self.columns.latency

    @cached_property
    def sorts(self) -> Longs:
        """A number for each link, shape (links,): those of one number are equally fast."""
        return self.network.sorts if isinstance(self.network, Laid) else sorts(self.columns)

    @cached_property
    def links_near(self) -> Hashes | None:
        """A hash of the sorts of the links on each GPU's ways, if these are known."""
        if self.paths is None:
            return None
        near = self.sorts[self.paths.slots]
        return np.zeros(len(near), np.uint64) if one_row(near) else mixed(near)

    @cached_property
    def memo(self) -> dict[object, float]:
        """What algorithms remember of this cluster: latencies of alike communications."""
        return {}

    @cached_property
    def protocols(self) -> dict[Hashable, list[dict[str, float]]]:
        """What algorithms remember of this cluster: constants of a collective by GPUs per node."""
        return {}

    def node(self, gpu: int) -> int:
        """Return the node that holds a GPU."""
        return gpu // self.gpus_per_node

    def near(self, gpu: int) -> set[Node]:
        """Return a GPU, and the switches and the NIC on its ways up."""
        return {gpu, *(node for way in self.ways.get(gpu, ()) for node in way)}

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one GPU to another, in order.

        The route turns round where the ways of both GPUs first meet: inside a node at a switch of
        the first tier that joins both, never at a NIC. Ways that end at different routers are
        joined by those between them. Where no ways are known it is the path of
        least latency. It never leads through a third GPU.

        Raises ValueError when the cluster has no such GPU, and InputError when there is no path.
        """
        known = self._routes.get((source, target))
        if known is None:
            known = self._routes[source, target] = self._find(source, target)
        return known

    def latency(self, route: Sequence[int]) -> float:
        """Return the seconds that the first byte takes along a route."""
        return fsum(self.delay[[*route]].tolist())

    @cached_property
    def limiting(self) -> Bools:
        """Whether each link can ever hold a communication back, shape (links,).

        False where the routes exclude it: everything that crosses the link has come over other
        links whose capacities together do not exceed its own, or goes on over such links. Links are
        left out one after another, each because of links that are still in, so that all links left
        out follow from those that stay.
        """
        back = self.network.back if isinstance(self.network, Laid) else None
        return limits.limiting(self.columns, back)

    @cached_property
    def paths(self) -> Paths | None:
        """The ways of all GPUs in columns, if they are known and lead through the same tiers."""
        if isinstance(self.network, Laid):
            return self.network.paths
        return of_ways(self.ways, self.index) if self.ways else None

    def routes(self, pairs: Longs) -> list[Ints]:
        """Return the routes between pairs of GPUs, shape (pairs, 2), as :meth:`route` does for one.

        They come in blocks of equally long ones, each of shape (routes, links), in any order.
        """
        if len(pairs) and 0 <= pairs.min() <= pairs.max() < self.gpus and self.paths:
            blocks = self.paths.blocks(pairs)
            if blocks is not None:
                return blocks
        lengths: dict[int, list[tuple[int, ...]]] = {}
        for a, b in pairs.tolist():
            route = self.route(a, b)
            lengths.setdefault(len(route), []).append(route)
        return [np.array(some, np.int32) for some in lengths.values()]

    def longest(self, routes: Sequence[Ints]) -> float:
        """Return the seconds that the first byte takes on the slowest of routes; 0 on none."""
        some = (block[self._unlike(block)] for block in routes)
        delays = (row for block in some for row in self.delay[block].tolist())
        return max(map(fsum, delays), default=0.0)

    def _unlike(self, routes: Ints) -> Longs:
        """Return routes of which each other one is as fast, link by link."""
        if len(routes) <= FEW:
            return np.arange(len(routes))
        sort = self.sorts[routes]
        kinds = int(self.sorts.max()) + 1
        if kinds ** sort.shape[1] > 2**62:
            return np.unique(mixed(sort), return_index=True)[1]
        code = sort @ kinds ** np.arange(sort.shape[1])
        return by_code(code, int(code.max())).first

    @cached_property
    def found(self) -> dict[Hashable, Any]:
        """What algorithms remember of this cluster: routes and placements of many ranks."""
        return {}

    @cached_property
    def placed(self) -> dict[tuple[int, ...], Any]:
        """What algorithms remember of this cluster: ranks of large groups by node."""
        return {}

    @cached_property
    def _routes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def _find(self, source: int, target: int) -> tuple[int, ...]:
        for gpu in (source, target):
            if not 0 <= gpu < self.gpus:
                raise ValueError(f"rank {gpu} is not among the {self.gpus} GPUs of {self.name}")
        if source == target:
            return ()
        blocks = self.paths.blocks(np.array([[source, target]])) if self.paths else None
        if blocks:
            return tuple(blocks[0][0].tolist())
        path = self._climb(source, target) if self.ways else self._search(source, target)
        return tuple(self.index[link] for link in pairwise(path))

    def _climb(self, source: int, target: int) -> Sequence[Node]:
        pairs = [*zip(self.ways[source], self.ways[target], strict=True)]
        up, down = next((pair for pair in pairs if not {*pair[0]}.isdisjoint(pair[1])), pairs[-1])
        if self.between and up[-1] != down[-1] and {*up}.isdisjoint(down):
            return [*up[:-1], *self.between(up[-1], down[-1]), *down[-2::-1]]
        meeting = next(node for node in up if node in down)
        return up[: up.index(meeting)] + down[down.index(meeting) :: -1]

    def _search(self, source: int, target: int) -> Sequence[Node]:
        def latency(_: Node, v: Node, edge: dict[str, float]) -> float | None:
            return None if isinstance(v, int) and v != target else edge["latency"]

        try:
            return list(nx.dijkstra_path(self.graph, source, target, weight=latency))
        except nx.NetworkXNoPath:
            raise InputError(f"{self.name} has no path from GPU {source} to {target}") from None


def at_boost(cluster: Cluster) -> Cluster:
    """Return the cluster with GPUs that all hold boost clock, whatever power they take."""
    costs = {name: table for name, table in cluster.gpu.costs.items() if name != "power"}
    return alike(replace(cluster, gpu=replace(cluster.gpu, costs=costs)))


def rated(cluster: Cluster) -> Cluster:
    """Return the cluster whose boards may draw the power on which products were measured."""
    power = cluster.gpu.costs.get("power")
    if not power:
        return cluster
    costs = {**cluster.gpu.costs, "power": {**power, "cap": power["rated"]}}
    return replace(cluster, gpu=replace(cluster.gpu, costs=costs))


def alike(cluster: Cluster) -> Cluster:
    """Return the cluster whose GPUs are all as fast as the mean one."""
    return replace(cluster, gpu=replace(cluster.gpu, spread=0.0))


def undisturbed(cluster: Cluster) -> Cluster:
    """Return the cluster with communication that takes no SM and no memory bandwidth of a GPU.

    Kernels beside it run as fast as alone; links are shared as before.
    """
    costs = {**cluster.gpu.costs, "communication": {"sms": {}, "hbm": {}}}
    return replace(cluster, gpu=replace(cluster.gpu, costs=costs))


def load(name_or_path: str | Path, gpus: int) -> Cluster:
    """Return ``gpus`` GPUs of the topology ``topologies/<name>.toml``, or of a file.

    Raises InputError, in one sentence, when there is no such topology (naming those there are), the
    file is not a topology, or it cannot hold so many GPUs.

    >>> cluster = load("dgx_a100", gpus=16)
    >>> [cluster.links[link] for link in cluster.route(0, 7)]
    [(0, 'nvswitch 0'), ('nvswitch 0', 7)]
    """
    return of_spec(room(read(name_or_path), gpus), gpus)


def of_spec(spec: Table, gpus: int) -> Cluster:
    """Return ``gpus`` GPUs of a topology, given its tables as :mod:`sim.machine.topology` reads."""
    wiring = fabric.wired(spec, gpus)
    gpu = Gpu(**{"spread": assumed("gpu")["spread"]} | spec["gpu"], costs=spec["costs"])
    return Cluster(
        spec["name"],
        gpu,
        wiring.network,
        spec["node"]["gpus"],
        spec["collectives"],
        wiring.ways,
        wiring.between,
        borrowed=spec["borrowed"],
    )
