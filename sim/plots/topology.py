"""The picture of a machine: GPUs in a row, each node's NVSwitch below, NICs and switches above."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import networkx as nx
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sim import units
from sim.machine.cluster import Cluster
from sim.machine.links import WORDS, Cable, Kind, Node, by_kind, height, tier
from sim.plots.memory import spread
from sim.plots.style import figure

_NODES, _SAMPLE = 8, 4  # drawn at most; of a larger machine so many, spread over it
_GPUS, _LEAST = 36, 8  # drawn at most of several nodes, but at least so many of each
_SPACE = 2.0  # between two nodes, where two GPUs are 1 apart
_NEAR = 1.2  # switches closer than this would overlap
_COLOURS = {
    "gpu": "#a9cbee",
    "nic": "#f3dd8b",
    "leaf": "#f2b48a",
    "switch": "#f2b48a",
    "router": "#f2b48a",
    "spine": "#e8853d",
    "core": "#d0a0d8",
}
_INSIDE, _OTHER = "#a8d5bf", "#cccccc"

Places = dict[Node, tuple[float, float]]


def topology(cluster: Cluster, *, title: str = "") -> Figure:
    """Draw a machine; of more than eight nodes, four that are spread over it.

    A line is a link in both directions; a thicker line is a faster link. Links of one kind have one
    colour, and the legend counts those of the whole machine. Parallel switches of one tier are one
    switch, as in the network. Of several large nodes some GPUs are drawn, spread over each. Of
    routers that join no GPU drawn, those on routes between some are.
    """
    nodes = list(range(-(-cluster.gpus // cluster.gpus_per_node)))
    shown = nodes if len(nodes) <= _NODES else spread(nodes, _SAMPLE)
    most = max(_GPUS // len(shown), _LEAST) if len(shown) > 1 else cluster.gpus
    network = _sample(cluster, shown, most)
    places = _places(network, cluster.gpus_per_node)
    made = figure(14.0, 1.8 + 0.9 * len({y for _, y in places.values()}))
    axes = made.add_subplot()
    key = _links(axes, by_kind(cluster.network), places)
    _nodes(axes, network, places)
    axes.set_axis_off()
    name = title or f"{cluster.name}: {cluster.gpus:,} {cluster.gpu.name}"
    part = f", {len(shown)} of {len(nodes)} nodes drawn" if shown != nodes else ""
    part += f", {most} GPUs of each" if most < min(cluster.gpus, cluster.gpus_per_node) else ""
    axes.set_title(name + part, fontsize=11, loc="left")
    if key:
        made.legend(handles=key, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return made


def _sample(cluster: Cluster, shown: Sequence[int], most: int) -> nx.DiGraph[Any]:
    """Return the part with some nodes, ``most`` GPUs of each, and all that joins them."""
    nodes = [[g for g in range(cluster.gpus) if cluster.node(g) == node] for node in shown]
    chosen = [gpu for node in nodes for gpu in spread(node, most)]
    others = set(range(cluster.gpus)) - set(chosen)
    if not others and not cluster.between:
        return cluster.graph
    kept: set[Node] = {node for gpu in chosen for node in cluster.near(gpu)}
    if cluster.between:
        pairs = [(a[0], b[0]) for a in nodes for b in nodes if a != b]
        kept |= {
            end for a, b in pairs for link in cluster.route(a, b) for end in cluster.links[link]
        }
    return nx.DiGraph(
        cluster.graph.subgraph(kept if cluster.ways else set(cluster.network) - others)
    )


def _places(network: nx.DiGraph[Any], per_node: int) -> Places:
    """Return where each node is: GPUs at height 0, switches in nodes below, all others above."""
    gpus = sorted(node for node in network if isinstance(node, int))
    out = _in_a_row(gpus, per_node)
    wide = max((x for x, _ in out.values()), default=1.0)
    between: dict[Node, float] = {}  # routers that stand over no node that is drawn
    for layer in nx.bfs_layers(network, gpus):
        new = [node for node in layer if node not in out]
        below = {n: [out[v][0] for v in network.predecessors(n) if v in out] for n in new}
        row = {node: float(np.mean(xs)) for node, xs in below.items() if xs}
        between |= {node: wide * 0.5 for node in new if node not in row or _aside(network, node)}
        row = {node: x for node, x in row.items() if node not in between}
        for at in sorted({height(network, node) for node in row}):
            level = {node: x for node, x in row.items() if height(network, node) == at}
            if at > 0:
                level = _apart(level, wide, 0.9 if at == 1 else _NEAR)
            out |= {node: (x, float(at)) for node, x in level.items()}
    above = 1.0 + max(y for _, y in out.values())
    return out | {node: (x, above) for node, x in _apart(between, wide, _NEAR).items()}


def _in_a_row(gpus: list[int], per_node: int) -> Places:
    """Return where GPUs are, which are ascending: side by side, with space between nodes."""
    nodes = [list(some) for _, some in groupby(gpus, lambda gpu: gpu // per_node)]
    step = max(map(len, nodes), default=0) + _SPACE
    return {g: (k * step + i, 0.0) for k, node in enumerate(nodes) for i, g in enumerate(node)}


def _aside(network: nx.DiGraph[Any], node: Node) -> bool:
    """Return whether only switches of a node's own tier join it."""
    return all(tier(network, other) == tier(network, node) for other in network.predecessors(node))


def _apart(row: dict[Node, float], wide: float, near: float) -> dict[Node, float]:
    """Return places in a row: above the middle of what each joins, spread where these overlap."""
    at = sorted(row.values())
    if all(b - a >= near for a, b in pairwise(at)):
        return row
    return {node: wide * (k + 0.5) / len(row) for k, node in enumerate(sorted(row, key=_natural))}


def _natural(node: Node) -> tuple[list[int], str]:
    """Return a key that sorts leaf 2 before leaf 10."""
    digits = "".join(c if c.isdigit() else " " for c in str(node)).split()
    return [int(part) for part in digits], str(node)


def _links(axes: Axes, kinds: dict[Kind, list[Cable]], places: Places) -> list[Line2D]:
    """Draw the links and return the entries of the legend."""
    least = min((kind.bandwidth for kind in kinds), default=1.0)
    key = []
    for k, (kind, cables) in enumerate(kinds.items()):
        colour = colormaps["viridis"](0.9 * k / max(len(kinds) - 1, 1))
        width = min(0.7 + 1.1 * float(np.log10(kind.bandwidth / least)), 3.0)
        rate = kind.bandwidth / 1e9
        ends = [_line(places[u], places[v]) for u, v in cables if u in places and v in places]
        axes.add_collection(LineCollection(ends, colors=[colour], linewidths=width, zorder=1))
        speed = f"{rate:{',.0f' if rate >= 1e3 else '.4g'}} GB/s each way"
        label = f"{kind.between}: {len(cables):,} links of {speed}, {units.seconds(kind.latency)}"
        key.append(Line2D([], [], color=colour, lw=width, label=label))
    return key


def _line(a: tuple[float, float], b: tuple[float, float]) -> NDArray[np.float64]:
    """Return the points of a line: straight, or an arc between two nodes of one row."""
    t = np.linspace(0.0, 1.0, 2 if a[1] != b[1] else 24)
    x, y = (np.interp(t, (0.0, 1.0), ends) for ends in zip(a, b, strict=True))
    return np.stack(
        [x, y + 4.0 * t * (1.0 - t) * (a[1] == b[1]) * (0.12 + 0.3 * _far(a, b))], axis=1
    )


def _far(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Return 0 for neighbours, and more the further two nodes of a row are apart, below 1."""
    return 1.0 - 1.0 / (1.0 + abs(a[0] - b[0]) / 20.0)


def _nodes(axes: Axes, network: nx.DiGraph[Any], places: Places) -> None:
    """Draw boxes with the numbers of GPUs and switches, and name each row of them at its left."""
    box = {"boxstyle": "round,pad=0.25", "ec": "0.35", "lw": 0.5}
    rows: dict[float, list[str]] = {}
    for node, (x, y) in places.items():
        kind = tier(network, node)
        colour = _INSIDE if y < 0 else _COLOURS.get(kind, _OTHER)
        text = network.nodes[node].get("label", str(node))
        axes.text(
            x, y, text, ha="center", va="center", size=6.5, bbox={**box, "fc": colour}, zorder=2
        )
        rows.setdefault(y, []).append(WORDS.get(kind, kind))
    xs = [x for x, _ in places.values()] or [0.0]
    left, margin = min(xs), 0.04 * (max(xs) - min(xs)) + 0.5
    for y, names in rows.items():
        axes.text(
            left - margin, y, "\n".join(dict.fromkeys(names)), ha="right", va="center", size=9
        )
    axes.set_xlim(left - 2.5 * margin, max(xs) + margin)
    axes.set_ylim(min(rows, default=0.0) - 0.5, max(rows, default=0.0) + 0.5)
