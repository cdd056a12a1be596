"""Makes a recorded graph without stragglers: nothing takes longer on one rank than on its peers.

``analyze`` divides by it, and ``remove stragglers`` makes it of a recording. The definition is that
of ``run --stragglers`` (:mod:`sim.whatif.stragglers`). Kernels take what is usual among those that
are truly alike (:mod:`sim.analysis.alike`), the lower median of ranks; so do transfers once all
their members are there, and the host's gaps. Waiting is no gap: what an op waited for is an edge,
so waits shrink with what they wait for. Kernels that ran beside longer waits of communication,
which holds SMs, get the lost time back (:mod:`sim.analysis.beside`).

The measure follows "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI '25). That study's own definition, means and medians over all ops of a kind, is kept for its
tables: :func:`across_kinds`.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from sim.analysis.activity import HOST as HOSTS
from sim.analysis.activity import activities
from sim.analysis.alike import alike, clock, parts_alike, usual
from sim.analysis.beside import Beside, shared
from sim.analysis.longest import Paths, Seconds
from sim.analysis.stragglers import equal
from sim.analysis.weights import op_weights, part_weights
from sim.graph import Bools, Fixed, Floats, Graph, Longs, owners
from sim.timeline import Timeline, dimension
from traces.replay.refixed import with_members

KERNELS, TRANSFERS, HOST = "kernels", "transfers", "host"
SORTS = (KERNELS, TRANSFERS, HOST)
"""What is levelled: kernels and copies, transfers, and the time that passes on the host."""
MOST = 16
"""After so many rounds, kernels and what runs beside them are taken to agree."""
LITTLE = 0.01
"""Transfers with a smaller share of the whole time are not mentioned."""
SLOW = 0.02
"""Transfers of a name are slower by more than this share on ranks whose links are slow."""
CLOSE = 1e-5
"""Rounds end when the last one changed the whole time by less than this share."""


class Compared(NamedTuple):
    """How much of a recording can be compared with ops that are alike."""

    kernels: float  # share of their time
    transfers: tuple[str, ...]  # dimensions with many transfers that have none alike


class Peers:
    """A recorded graph of fixed works, and what its ops would take if all ranks were alike."""

    def __init__(
        self, graph: Graph, recorded: Timeline, sms: Floats | None = None, apart: bool = False
    ) -> None:
        self.graph, self._apart = graph, apart
        fixed = np.array([of.seconds if isinstance(of, Fixed) else 0.0 for of in graph.works])
        self.seconds = Seconds(fixed[graph.work], fixed[graph.part_work][graph.part])
        self.like = alike(graph)
        self.parts = parts_alike(graph, self.like)
        kinds = activities(graph)
        self._member = np.diff(graph.part_start) > 0
        self._rank, self._weight = graph.rank.astype(np.int64), op_weights(graph)
        self._host = kinds.code == kinds.names.index(HOSTS)
        self._clock = clock(recorded)
        self._shared = shared(recorded, 2 * self._clock)
        self._beside = None
        if sms is not None and sms.any() and not apart:
            self._beside = Beside(recorded, self.seconds.op, sms, self.like)

    @cached_property
    def base(self) -> Timeline:
        """The graph run as it is."""
        return self._paths.run(self.seconds)

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self.graph, self._apart)

    def compared(self) -> Compared:
        """Return how much has something alike on another rank."""
        own = np.flatnonzero(~self._member & ~self._host)
        seconds, like = self.seconds.op[own], self.like[own]
        size = np.bincount(like)
        whole = math.fsum(seconds.tolist())
        share = math.fsum(seconds[size[like] > 1].tolist()) / whole if whole else 1.0
        graph = self.graph
        size = np.bincount(self.parts[self.parts >= 0])
        several = np.bincount(graph.part, minlength=len(graph.part_work)) > 1
        lone = several & (self.parts >= 0) & (size[self.parts] == 1)
        took = np.zeros(len(graph.part_work))
        took[graph.part] = self.seconds.member
        names = np.array([dimension(of) or "communication" for of in graph.works], object)
        by_name = pd.Series(took[lone]).groupby(names[graph.part_work[lone]]).sum()
        much = by_name[by_name > LITTLE * self.base.seconds]
        return Compared(share, tuple(sorted(much.index)))

    def without(self, sorts: Collection[str] = SORTS) -> tuple[Graph, Seconds, Timeline]:
        """Return the graph with gaps and seconds of these kinds levelled, and when it all runs."""
        gaps = HOST in sorts and (self.graph.lag.any() or self.graph.wait_lag.any())
        graph = self._with_gaps() if gaps else self.graph
        op, member = self.seconds
        if HOST in sorts:
            op = np.where(self._host, self._of_ops(self.seconds.op, self._host), op)
        if TRANSFERS in sorts:
            member = self._transfers()[graph.part]
        own = ~self._member & ~self._host
        alone = self.seconds.op if self._beside is None else self._beside.alone
        level = self._of_ops(alone, own) if KERNELS in sorts else alone
        op = np.where(own, op + (level - alone), op)
        paths = Paths(graph, self._apart) if gaps else self._paths
        return (graph, *self._agreed(paths, op, member))

    def _agreed(self, paths: Paths, op: Floats, member: Floats) -> tuple[Seconds, Timeline]:
        """Return seconds of kernels that fit what runs beside them, and when all runs."""
        seconds = Seconds(op, member)
        ran = paths.run(seconds)
        if self._beside is None:
            return seconds, ran
        before = self._beside.lost(self.base)
        for k in range(MOST):
            now = op + (self._beside.lost(ran) - before)
            now = now if k < MOST // 3 else (now + seconds.op) / 2
            seconds, last = Seconds(np.maximum(now, 0.0), member), ran
            ran = paths.run(seconds)
            if np.abs(ran.end - last.end).max(initial=0.0) <= CLOSE * ran.end.max(initial=0.0):
                break
        return seconds, ran

    def _of_ops(self, seconds: Floats, ops: Bools) -> Floats:
        """Return the seconds of all ops; these ops take what is usual."""
        rows, out = np.flatnonzero(ops), seconds.copy()
        if len(rows):
            out[rows] = self._usual(seconds[rows], self.like[rows], rows)
        return out

    def _usual(self, values: Floats, like: Longs, ops: Longs) -> Floats:
        """Return what is usual of values that belong to these ops, one each."""
        columns = self._kinds[ops], self._rank[ops], self._weight[ops]
        return usual(values, like, *columns, self._clock)

    @cached_property
    def _kinds(self) -> Longs:
        """A number for ops of one name on ranks of one place."""
        first = np.full(int(self.like.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, self.like, self.graph.rank)  # the least rank with an op alike
        return np.asarray(first[self.like] * len(self.graph.names) + self.graph.name, np.int64)

    def _transfers(self) -> Floats:
        """Return, per part, what is usual among parts that are alike, (parts,).

        A transfer shares a rank's links with others that move at the same time. It is levelled
        where the other transfers of its name are slow on those ranks; otherwise it keeps its time.
        """
        graph, owner = self.graph, owners(self.graph.part_start)
        n = len(graph.part_work)
        seconds, rank, name = np.zeros(n), np.full(n, np.iinfo(np.int32).max), np.zeros(n, np.int64)
        seconds[graph.part] = self.seconds.member
        np.minimum.at(rank, graph.part, self._rank[owner])
        name[graph.part[::-1]] = graph.name[owner[::-1]]
        if not n:
            return seconds
        free = ~np.isin(self.parts, self.parts[self._shared])  # the part and those alike
        free |= ~np.isin(name, name[free])
        rank = rank.astype(np.int64)
        weight = part_weights(graph)
        out = usual(seconds, self.parts, name, rank, weight, self._clock)
        some = self.parts[free], name[free], rank[free], weight[free]
        out[free] = usual(seconds[free], *some, self._clock)
        rows = pd.DataFrame({"name": name, "rank": rank, "was": seconds, "now": out})
        sums = rows[free].groupby(["name", "rank"])[["was", "now"]].sum()
        slow = sums["now"] < (1 - SLOW) * sums["was"]
        of_part = slow.reindex(pd.MultiIndex.from_frame(rows[["name", "rank"]]), fill_value=False)
        return np.where(free | of_part.to_numpy(bool), out, seconds)

    def _with_gaps(self) -> Graph:
        """Return the graph whose lags are what is usual."""
        graph, owner = self.graph, owners(self.graph.wait_start)
        lag, wait_lag = graph.lag, graph.wait_lag
        if lag.any():
            lag = self._usual(lag, self.like, np.arange(len(graph)))
        if wait_lag.any():
            nth = np.arange(len(owner)) - graph.wait_start[owner]
            like = nth + (int(nth.max(initial=0)) + 1) * self.like[owner]
            wait_lag = self._usual(wait_lag, like, owner)
        return replace(graph, lag=lag, wait_lag=wait_lag)


def across_ranks(graph: Graph, recorded: Timeline, sms: Floats | None, apart: bool) -> Graph:
    """Return the graph with everything levelled, and the seconds in its works.

    It may have ops of its own, which take no time, before the recorded ones.
    """
    more = np.zeros(len(graph) - len(recorded.graph))
    start, end = (np.append(more, of) for of in (recorded.start, recorded.end))
    sms = None if sms is None else np.append(more, sms)
    levelled, seconds, _ = Peers(graph, Timeline(graph, start, end), sms, apart).without()
    return with_members(levelled, seconds, graph.part_tail)


def across_kinds(graph: Graph, timeline: Timeline) -> Graph:
    """Return what the OSDI '25 study calls ideal: see :func:`sim.analysis.stragglers.equal`."""
    seconds = equal(timeline)
    least = np.full(len(graph.part_work), np.inf)
    np.minimum.at(least, graph.part, seconds.member)
    return with_members(graph, seconds, seconds.member - least[graph.part])
