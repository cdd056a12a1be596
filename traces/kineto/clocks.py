"""Clocks of different ranks brought together: a collective ends on all ranks at one time.

Within tens of microseconds, that is; so the offset and the drift of a pair of ranks are medians
over all collectives that they share (Theil and Sen's slope), and ranks without one in common are
aligned through others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from sim.graph import Floats

LEAST = 16  # collectives, below which no drift is estimated
NOISE = 20e-6
"""Seconds by which ranks end a collective apart on one clock; less than this moves no clock."""
SAMPLE = 400  # collectives, above which a drift is estimated from so many


class Clock(NamedTuple):
    """Seconds to add to a rank's clock at its second t: offset + drift * t."""

    offset: float
    drift: float

    def __call__(self, seconds: Floats) -> Floats:
        """The same instants on the common clock."""
        return seconds + self.offset + self.drift * seconds


def align(ends: Sequence[Mapping[int, float]], ranks: Sequence[int]) -> dict[int, Clock]:
    """A clock for each rank, relative to the first. ``ends``: per collective, rank -> its end."""
    shared: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, members in enumerate(ends):
        some = sorted(members)
        for a in some:
            for b in some:
                if a < b:
                    shared[a, b].append(k)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(ranks)
    graph.add_weighted_edges_from((a, b, len(rows)) for (a, b), rows in shared.items())
    clocks: dict[int, Clock] = {}
    for root in ranks:
        if root in clocks:
            continue
        clocks[root] = Clock(0.0, 0.0)
        for near, far in _tree(graph, root):
            rows = shared[min(near, far), max(near, far)]
            at = np.array([ends[k][far] for k in rows])
            to = clocks[near](np.array([ends[k][near] for k in rows]))
            clocks[far] = _fit(at, to - at)
    return clocks


def _tree(graph: nx.Graph[int], root: int) -> list[tuple[int, int]]:
    """Edges from the root outwards, over pairs of ranks that share most."""
    tree = nx.maximum_spanning_tree(graph.subgraph(nx.node_connected_component(graph, root)))
    return list(nx.bfs_edges(tree, root))


def _fit(at: Floats, apart: Floats) -> Clock:
    """Offset and drift; nothing where clocks agree within noise, no drift that may be chance."""
    clock = _line(at, apart)
    moved = np.abs(clock(at[[0, -1]]) - at[[0, -1]])
    return clock if moved.max() >= NOISE else Clock(0.0, 0.0)


def _line(at: Floats, apart: Floats) -> Clock:
    """Medians through (seconds, seconds apart)."""
    offset = float(np.median(apart))
    if len(at) < LEAST:
        return Clock(offset, 0.0)
    some = np.unique(np.linspace(0, len(at) - 1, min(len(at), SAMPLE)).astype(int))
    x, y = at[some], apart[some]
    i, j = np.triu_indices(len(x), 1)
    far = x[j] != x[i]
    slope = float(np.median((y[j] - y[i])[far] / (x[j] - x[i])[far])) if far.any() else 0.0
    level = float(np.median(apart - slope * at))
    around = 1.25 * np.abs(apart - slope * at - level).mean()  # a normal's standard deviation
    error = around / max(float(at.std()) * np.sqrt(len(at)), 1e-12)
    return Clock(level, slope) if abs(slope) > 3 * error else Clock(offset, 0.0)


def residual(ends: Sequence[Mapping[int, float]], clocks: Mapping[int, Clock]) -> float:
    """Seconds between the first and the last end of a collective, after alignment (median)."""
    spread = [
        np.ptp([clocks[rank](np.array(end)) for rank, end in members.items()])
        for members in ends
        if len(members) > 1
    ]
    return float(np.median(spread)) if spread else 0.0
