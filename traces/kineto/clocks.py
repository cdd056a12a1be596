"""Aligns the clocks of different ranks: a collective ends on all ranks at one time.

It does so within tens of microseconds. So the offset and the drift of a pair of ranks are medians
over all collectives that they share (Theil and Sen's slope). Ranks that share none are aligned
through other ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from sim.graph import Floats

LEAST = 16  # with fewer collectives no drift is estimated
NOISE = 20e-6
"""Seconds by which ranks end a collective apart on one clock; smaller differences move no clock."""
SAMPLE = 400  # a drift is estimated from at most so many collectives


class ClockCorrection(NamedTuple):
    """Seconds to add to a rank's clock at its second t: offset + drift · t."""

    offset: float
    drift: float

    def __call__(self, seconds: Floats) -> Floats:
        """Return the same instants on the common clock."""
        return seconds + self.offset + self.drift * seconds


def align(ends: Sequence[Mapping[int, float]], ranks: Sequence[int]) -> dict[int, ClockCorrection]:
    """Return a clock for each rank, relative to the first.

    ``ends`` has, for each collective, the second at which it ended on each rank.
    """
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
    clocks: dict[int, ClockCorrection] = {}
    for root in ranks:
        if root in clocks:
            continue
        clocks[root] = ClockCorrection(0.0, 0.0)
        for near, far in _tree(graph, root):
            rows = shared[min(near, far), max(near, far)]
            at = np.array([ends[k][far] for k in rows])
            to = clocks[near](np.array([ends[k][near] for k in rows]))
            clocks[far] = _fit(at, to - at)
    return clocks


def _tree(graph: nx.Graph[int], root: int) -> list[tuple[int, int]]:
    """Return edges from the root outwards, over the pairs of ranks that share most collectives."""
    tree = nx.maximum_spanning_tree(graph.subgraph(nx.node_connected_component(graph, root)))
    return list(nx.bfs_edges(tree, root))


def _fit(at: Floats, apart: Floats) -> ClockCorrection:
    """Return offset and drift.

    Both are 0 where clocks agree within noise; the drift is 0 where it may be chance.
    """
    clock = _line(at, apart)
    moved = np.abs(clock(at[[0, -1]]) - at[[0, -1]])
    return clock if moved.max() >= NOISE else ClockCorrection(0.0, 0.0)


def _line(at: Floats, apart: Floats) -> ClockCorrection:
    """Fit a line through (seconds, seconds apart) by medians."""
    offset = float(np.median(apart))
    if len(at) < LEAST:
        return ClockCorrection(offset, 0.0)
    some = np.unique(np.linspace(0, len(at) - 1, min(len(at), SAMPLE)).astype(int))
    x, y = at[some], apart[some]
    i, j = np.triu_indices(len(x), 1)
    far = x[j] != x[i]
    slope = float(np.median((y[j] - y[i])[far] / (x[j] - x[i])[far])) if far.any() else 0.0
    level = float(np.median(apart - slope * at))
    around = 1.25 * np.abs(apart - slope * at - level).mean()  # a normal's standard deviation
    error = around / max(float(at.std()) * np.sqrt(len(at)), 1e-12)
    return ClockCorrection(level, slope) if abs(slope) > 3 * error else ClockCorrection(offset, 0.0)


def residual(ends: Sequence[Mapping[int, float]], clocks: Mapping[int, ClockCorrection]) -> float:
    """Return the seconds between first and last end of a collective after alignment (median)."""
    spread = [
        np.ptp([clocks[rank](np.array(end)) for rank, end in members.items()])
        for members in ends
        if len(members) > 1
    ]
    return float(np.median(spread)) if spread else 0.0
