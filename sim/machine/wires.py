"""The nodes and links of a machine, as a graph that is quick to make."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any

from sim.late import nx

Node = Hashable
Link = tuple[Node, Node]
Facts = dict[str, Any]


class Wires:
    """Nodes, and links from one to another, with facts about each, in the order of laying.

    It answers as a :class:`networkx.DiGraph` does, which may take its place, and whose import takes
    as long as a small run; :func:`to_networkx` makes one for paths and drawings.

    >>> wires = Wires()
    >>> wires.add_edge(0, "switch", bandwidth=1e9)
    >>> list(wires), list(wires.edges(data="bandwidth"))
    ([0, 'switch'], [(0, 'switch', 1000000000.0)])
    """

    def __init__(self, lay: Callable[[], Wires] | None = None) -> None:
        """Begin without nodes, or with those of ``lay``, which is called when they are needed."""
        self._lay = lay

    @cached_property
    def nodes(self) -> dict[Node, Facts]:
        """The facts about each node."""
        return self._laid.nodes if self._laid else {}

    @cached_property
    def _after(self) -> dict[Node, dict[Node, Facts]]:
        return self._laid._after if self._laid else {}

    @cached_property
    def _laid(self) -> Wires | None:
        return self._lay() if self._lay else None

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, node: Node) -> dict[Node, Facts]:
        """Return the links that lead away from a node, by where they lead."""
        return self._after[node]

    def add_node(self, node: Node, **facts: Any) -> None:
        """Add a node, or facts to one that is there."""
        self.nodes.setdefault(node, {}).update(facts)
        self._after.setdefault(node, {})

    def add_edge(self, start: Node, end: Node, **facts: Any) -> None:
        """Add a link and both its ends, or facts to one that is there."""
        self.add_node(start)
        self.add_node(end)
        self._after[start].setdefault(end, {}).update(facts)

    def has_edge(self, start: Node, end: Node) -> bool:
        """Return whether there is a link from one node to another."""
        return end in self._after.get(start, ())

    @property
    def edges(self) -> Links:
        """The links: their ends, ``edges[link]`` their facts, ``edges(data=...)`` both."""
        return Links(self._after)

    def copy(self) -> Wires:
        """Return a copy, whose facts can be changed alone."""
        out = Wires()
        out.nodes = {node: dict(facts) for node, facts in self.nodes.items()}
        out._after = {
            start: {end: dict(facts) for end, facts in ends.items()}
            for start, ends in self._after.items()
        }
        return out


class Links:
    """The links of some nodes, in the order of their starts and then of laying."""

    def __init__(self, after: dict[Node, dict[Node, Facts]]) -> None:
        self._after = after

    def __iter__(self) -> Iterator[Link]:
        return ((start, end) for start, ends in self._after.items() for end in ends)

    def __getitem__(self, link: Link) -> Facts:
        return self._after[link[0]][link[1]]

    def __call__(self, data: str | bool, default: Any = None) -> Iterator[tuple[Node, Node, Any]]:
        """Yield both ends of each link with one of its facts, or with all (True)."""
        for start, ends in self._after.items():
            for end, facts in ends.items():
                yield start, end, facts if data is True else facts.get(str(data), default)


def to_networkx(network: Wires | nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """Return the same as a graph of networkx, which it may be already."""
    if not isinstance(network, Wires):
        return network
    out: nx.DiGraph[Any] = nx.DiGraph()
    out.add_nodes_from(network.nodes.items())
    out.add_edges_from(network.edges(data=True))
    return out
