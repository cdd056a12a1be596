"""A helper of analyses: how much slower recorded kernels run beside communication.

A collective's kernel holds one SM for each of its blocks from its start, even while it waits for
another rank, and takes memory bandwidth while data moves. A kernel that multiplies matrices loses
its share of the SMs; one that is bound by memory loses bandwidth. So the seconds of a kernel are
those that it takes alone, plus a share ``held`` of the SM time held beside it, plus a share
``moved`` of the time in which data moved beside it. Both shares are fitted for each name of kernels
to the differences between ranks and layers. The fit is drawn to the expected shares: ``held`` is 1
and ``moved`` is ``CONTENTION`` for matrix products; both are 0 for other kernels.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sim.analysis.activity import COMPUTE, activities, by_rank
from sim.analysis.relations import rendezvous
from sim.graph import Bools, Floats, Graph, Longs, owners
from sim.late import optimize
from sim.timeline import Timeline, kind

BOUND_BY_MEMORY = frozenset(
    {"copy", "cross_entropy", "dropout", "elementwise", "embedding", "index", "norm", "optimizer"}
) | {"reduction", "softmax"}
"""The kinds of kernels that lose nothing when they have an SM less."""
STRENGTH = 0.15
"""The weight of the expected shares in the fit, as a share of the kernels' mean seconds."""
CONTENTION = 0.23
"""The share ``moved`` expected of matrix products: contention of assumed.toml, 0.7, times 0.33 of
the memory bandwidth, which a ring of NCCL inside a node of H100s takes."""
MOST_MOVED = 0.5
"""The largest share ``moved``: communication takes no more of the memory bandwidth."""


class Beside:
    """What each kernel of a recording takes alone, and what it loses beside communication."""

    def __init__(self, timeline: Timeline, seconds: Floats, sms: Floats, like: Longs) -> None:
        graph = timeline.graph
        kinds = activities(graph)
        member = np.diff(graph.part_start) > 0
        self._held = sms
        self._communication = np.flatnonzero(member)
        self.kernels = np.flatnonzero((kinds.code == kinds.names.index(COMPUTE)) & ~member)
        around = self._around(timeline)
        self._shares = _fit(graph, seconds, around, like, self.kernels)
        self.alone = seconds - (around * self._shares).sum(axis=1)

    def lost(self, timeline: Timeline) -> Floats:
        """Return per op the seconds that it loses beside the communication of ``timeline``."""
        return np.asarray((self._around(timeline) * self._shares).sum(axis=1), np.float64)

    def _around(self, timeline: Timeline) -> Floats:
        """Return per op the SM time held beside it, and the time in which data moved beside it.

        The array is (ops, 2), in seconds; an SM counts as its share of all SMs.
        """
        graph, start, end = timeline.graph, timeline.start, timeline.end
        moves = rendezvous(timeline)[1]
        out = np.zeros((len(graph), 2))
        there = np.zeros(len(graph), np.int8)
        there[self.kernels], there[self._communication] = 1, 2
        for _, ops in by_rank(graph):
            k, of = ops[there[ops] == 1], ops[there[ops] == 2]
            if len(k) and len(of):
                spans = start[k], end[k]
                out[k, 0] = overlap(start[of], end[of], self._held[of], *spans)
                out[k, 1] = overlap(moves[of], end[of], np.ones(len(of)), *spans)
        return np.maximum(out, 0.0)


def overlap(begin: Floats, end: Floats, weight: Floats, low: Floats, high: Floats) -> Floats:
    """Return the weighted seconds of some stretches of time inside each of others.

    The stretches run from ``begin`` to ``end`` (m,) and have a ``weight`` each (m,); the others run
    from ``low`` to ``high`` (n,). The result is (n,), in weighted seconds.
    """

    def until(times: Floats, edges: Floats) -> Floats:
        order = np.argsort(edges, kind="stable")
        edges, held = edges[order], weight[order]
        row = np.searchsorted(edges, times)
        sums = np.append(0.0, np.cumsum(held))[row], np.append(0.0, np.cumsum(held * edges))[row]
        return np.asarray(sums[0] * times - sums[1], np.float64)

    return np.asarray(
        until(high, begin) - until(high, end) - until(low, begin) + until(low, end), np.float64
    )


def shared(timeline: Timeline, least: float) -> Bools:
    """Return a flag per part: data of another part of one of its members moves at the same time.

    This counts if it lasts more than ``least`` seconds and a hundredth of the part's own time.
    """
    graph, part = timeline.graph, timeline.graph.part
    owner = owners(graph.part_start)
    n = len(graph.part_work)
    begin, end, beside = np.full(n, -np.inf), np.full(n, np.inf), np.zeros(n)
    np.maximum.at(begin, part, timeline.start[owner])
    np.minimum.at(end, part, timeline.end[owner])
    end = np.maximum(begin, end)
    for rank in graph.ranks().tolist():
        mine = np.unique(part[graph.rank[owner] == rank])
        low, high = begin[mine], end[mine]
        most = overlap(low, high, np.ones(len(mine)), low, high) - (high - low)
        beside[mine] = np.maximum(beside[mine], most)
    return np.asarray(beside > 0.01 * (end - begin) + least, np.bool_)


def _fit(graph: Graph, seconds: Floats, around: Floats, like: Longs, kernels: Longs) -> Floats:
    """Return both shares of each op (ops, 2), fitted name by name."""
    kinds = [kind(work).removesuffix("_backward") in BOUND_BY_MEMORY for work in graph.works]
    light = np.array(kinds, bool)[graph.work]
    by_name = np.zeros((len(graph.names), 2))
    order = kernels[np.argsort(graph.name[kernels], kind="stable")]
    bounds = np.flatnonzero(np.diff(graph.name[order], prepend=-1, append=-2))
    for a, b in pairwise(bounds.tolist()):
        ops = order[a:b]
        expected = np.array([0.0, 0.0] if light[ops[0]] else [1.0, CONTENTION])
        by_name[graph.name[ops[0]]] = _shares(
            seconds[ops], around[ops], like[ops], graph.rank[ops], expected
        )
    out = np.zeros((len(graph), 2))
    out[kernels] = by_name[graph.name[kernels]]
    return out


def _shares(
    seconds: Floats, around: Floats, like: Longs, rank: NDArray[np.integer], expected: Floats
) -> Floats:
    """Return both shares of one name by least squares over how ranks differ in ops that are alike.

    The other unknowns are how much slower each rank is, as a share of the mean seconds that the ops
    like it take alone.
    """
    row = np.unique(like, return_inverse=True)[1]
    of_rank = np.unique(rank, return_inverse=True)[1]
    size, ranks = np.bincount(row), int(of_rank.max()) + 1
    if ranks < 2 or not around.any():
        return expected
    shares = expected

    def apart(values: Floats) -> Floats:
        return np.asarray(values - (np.bincount(row, values) / size)[row], np.float64)

    n, whole = len(seconds), float(seconds.mean())
    prior = np.zeros((ranks + 2, ranks + 2))
    aim, high = np.zeros(ranks + 2), np.full(ranks + 2, np.inf)
    aim[ranks:], high[ranks:] = expected, (1.0, MOST_MOVED)
    low = np.where(np.isinf(high), -np.inf, 0.0)
    for _ in range(6):
        alone = seconds - around @ shares
        usual = (np.bincount(row, alone) / size)[row]
        slow = np.zeros((n, ranks))
        slow[np.arange(n), of_rank] = usual
        matrix = np.stack([apart(column) for column in (*slow.T, *around.T)], axis=1)
        weak = 1e-3 * np.abs(usual).mean() / ranks
        np.fill_diagonal(
            prior, np.sqrt(n) * np.append(np.full(ranks, weak), [STRENGTH * whole] * 2)
        )
        square = matrix.T @ matrix + prior @ prior
        try:
            root = np.linalg.cholesky(square)  # so few rows do for as many equations
        except np.linalg.LinAlgError:  # of nothing that differs
            return expected
        right = np.linalg.solve(root, matrix.T @ apart(seconds) + prior @ prior @ aim)
        found = optimize.lsq_linear(root.T, right, (low, high)).x[ranks:]
        if np.abs(found - shares).max() < 1e-6:
            break
        shares = found
    return np.asarray(shares, np.float64)
