"""The cost of stragglers in a simulated step: how much faster it would be without them.

This is the what-if analysis of "Understanding Stragglers in Large Model Training" (OSDI '25). Each
question is a second simulation, so that sharing of links and GPUs is right. Of a recording only the
ops are known; ``analyze`` asks it the same questions with the same measure, the lower median over
ranks of ops that are alike (:mod:`sim.analysis.alike`). The measure of the study itself, means over
all ops of a kind, is in :mod:`sim.analysis.stragglers`, for its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sim.analysis.steps import ends, kept
from sim.analysis.stragglers import falling, lesser
from sim.builder.job import Job
from sim.engine import simulate
from sim.graph import Bools, Floats, Graph, Longs
from sim.machine.cluster import Cluster
from sim.machine.edits import Edit, applied, with_capacity
from sim.machine.hardware import Machine
from sim.timeline import Timeline, kind
from sim.whatif.equal import equal_factor, near, stages

Flags = Bools
MOST = 64
"""Up to so many ranks are asked about one by one; beyond, blame follows from replica and stage."""
LINKS, PAUSES = "links", "pauses"
"""The kinds that are not kernels: links slower than they should be, and stalls."""


@dataclass(frozen=True)
class Blame:
    """The slowdowns of a step, over the ideal step; 1 is none, below 1 is faster than usual.

    One is of the step as it is. Each other is of a step in which only what its label names is as it
    is, and all else ideal. The labels of each table are in falling order.
    """

    slowdown: float
    ideal_s: float
    """The seconds of a step in which no op or link is slower than usual."""
    by_rank: Mapping[int, float]
    by_stage: Mapping[int, float]
    by_replica: Mapping[int, float]
    by_kind: Mapping[str, float]
    """By kind of kernel, and for "links" and "pauses"."""
    by_step: Mapping[int, float]


class Kept(NamedTuple):
    """The parts of a step that are left as they are, while all others are made ideal."""

    ops: Flags  # whose kernels are as slow as they are
    pauses: Flags  # ops that pause if they do
    links: Flags


class Ideal(NamedTuple):
    """The factors and capacities of ops and links as they are, and without any straggler."""

    graph: Graph
    machine: Machine
    own: Floats
    """The factor of each op as it is; ``factor`` has what it should be."""
    factor: Floats
    capacity: Floats
    """The B/s of each link in the healthy cluster."""


def stragglers(
    timeline: Timeline,
    machine: Machine,
    cluster: Cluster,
    job: Job,
    report: Callable[[str, int, int], object] = lambda *_: None,
    ramps: tuple[int, int] = (1, 0),
) -> Blame:
    """Return the slowdowns of a simulated step by rank, stage, replica, kind and step.

    In the ideal step, kernels take what is usual among ranks (:mod:`.equal`), links carry what they
    should and nothing pauses. Stages whose work differs are nobody's fault: a job in which no rank
    is slow has slowdowns of exactly 1. A rank is blamed for its kernels, its pauses, and the links
    on its own way to the core. Ranks that are alike, of which one is simulated, are asked about
    together. If there are several steps, those between the ``ramps`` (steps left out at the
    beginning and at the end) count, as for the step time. Takes a simulation for each label that
    differs from the ideal step.
    """
    graph = timeline.graph
    ideal = _ideal(graph, machine, (cluster.healthy or cluster).capacity)
    none = np.zeros(len(graph), bool)
    nothing = Kept(none, none, np.zeros(len(machine.capacity), bool))
    best, base = _steps(simulate(*_mixed(ideal, nothing))), _steps(timeline)
    count = slice(*kept(len(best), *ramps))
    least = best[count].sum()
    asked = list(_questions(ideal, cluster, job))
    found: dict[str, dict[int | str, float]] = {}
    for k, (table, label, left) in enumerate(asked):
        report("stragglers", k, len(asked))
        slow = 1.0
        if _differs(ideal, left):
            slow = float(_steps(simulate(*_mixed(ideal, left)))[count].sum() / least)
        if slow != 1.0 or label not in (LINKS, PAUSES):
            found.setdefault(table, {})[label] = slow
    by_stage, by_replica = _ints(found, "stage"), _ints(found, "replica")
    by_rank = _ints(found, "rank") or lesser(
        graph.rank, stages(graph), _coordinate(job, 2), by_stage, by_replica
    )
    return Blame(
        slowdown=float(base[count].sum() / least),
        ideal_s=float(best[count].mean()),
        by_rank=falling(by_rank),
        by_stage=falling(by_stage),
        by_replica=falling(by_replica),
        by_kind=falling({str(name): s for name, s in found.get("kind", {}).items()}),
        by_step=falling(dict(enumerate((base / best).tolist()))),
    )


def rank_matrix(of: Blame, job: Job) -> tuple[list[int], list[int], Floats]:
    """Return the slowdowns as a matrix: replicas, pipeline ranks, and a value for each pair.

    The value (replicas x pipeline ranks) is the largest slowdown of the pair's ranks. Replicas and
    pipeline ranks that are not simulated are left out.
    """
    known = np.full(job.mesh.world, np.nan)
    known[[*of.by_rank]] = [*of.by_rank.values()]
    each = np.nan_to_num(known[job.ranks], nan=-np.inf).max(axis=(0, 1))
    rows, columns = ((each > -np.inf).any(axis=axis) for axis in (1, 0))
    return (
        np.flatnonzero(rows).tolist(),
        np.flatnonzero(columns).tolist(),
        each[np.ix_(rows, columns)],
    )


def healed(
    graph: Graph,
    machine: Machine,
    healthy: Floats,
    *,
    kernels: bool = True,
    links: bool = True,
    pauses: bool = True,
) -> Timeline:
    """Simulate the ideal step, by which :func:`stragglers` divides.

    ``kernels``, ``links`` and ``pauses`` say which of these are made ideal; the others stay as they
    are. ``healthy`` has the capacity in B/s that each link should have.
    """
    kept = Kept(
        np.full(len(graph), not kernels),
        np.full(len(graph), not pauses),
        np.full(len(machine.capacity), not links),
    )
    return simulate(*_mixed(_ideal(graph, machine, healthy), kept))


def _ideal(graph: Graph, machine: Machine, healthy: Floats) -> Ideal:
    own = np.ones(len(graph)) if machine.factor is None else machine.factor
    return Ideal(graph, machine, own, equal_factor(graph, machine), healthy)


def _mixed(of: Ideal, kept: Kept) -> tuple[Graph, Machine]:
    """Return the graph and machine in which what is kept is as it is, and all else is ideal."""
    capacity = np.where(kept.links, of.machine.capacity, of.capacity)
    machine = of.machine
    if not np.array_equal(capacity, machine.capacity):
        machine = with_capacity(machine, capacity)
    kernels = Edit("kernels", True, np.where(kept.ops, of.own, of.factor))
    return applied(of.graph, replace(machine, factor=None), kernels, Edit("lag", ~kept.pauses, 0.0))


def _differs(of: Ideal, kept: Kept) -> bool:
    """Return whether anything that is kept is not ideal."""
    kernels = (of.own[kept.ops] != of.factor[kept.ops]).any() or of.graph.lag[kept.pauses].any()
    links = of.machine.capacity[kept.links] != of.capacity[kept.links]
    return bool(kernels or links.any())


def _questions(of: Ideal, cluster: Cluster, job: Job) -> Iterator[tuple[str, int | str, Kept]]:
    """Yield each question: the table and label of its answer, and what is kept as it is."""
    graph, ways = of.graph, _slow_ways(of, cluster)
    there, stage = {*graph.ranks().tolist()}, stages(graph)
    replica = _coordinate(job, 2)
    ends = [{*graph.rank[stage == k].tolist()} for k in range(int(stage.max(initial=-1)) + 1)]
    column = _coordinate(job, 3)  # a slow link of a clone is that of the stages there

    def kept(ops: Flags, ranks: set[int]) -> Kept:
        links = np.zeros(len(of.capacity), bool)
        links[[link for rank in ranks for link in ways.get(rank, [])]] = True
        return Kept(ops, ops, links)

    ranks = sorted(there | ways.keys())
    for rank in ranks if len(ranks) <= MOST else []:
        yield "rank", rank, kept(graph.rank == rank, {rank})
    for k, own in enumerate(ends):
        along = np.isin(column, column[[*own]])
        yield "stage", k, kept(stage == k, {*np.flatnonzero(along).tolist()})
    for k in np.unique(replica[ranks]).tolist():
        yield "replica", k, kept(replica[graph.rank] == k, {*np.flatnonzero(replica == k).tolist()})
    no_ops, no_links = np.zeros(len(graph), bool), np.zeros(len(of.capacity), bool)
    kinds = np.array([kind(work) for work in graph.works], object)[graph.work]
    for name in sorted({*kinds[of.own != of.factor].tolist()}):
        yield "kind", name, Kept(kinds == name, no_ops, no_links)
    yield "kind", PAUSES, Kept(no_ops, ~no_ops, no_links)
    yield "kind", LINKS, Kept(no_ops, no_ops, ~no_links)


def _slow_ways(of: Ideal, cluster: Cluster) -> dict[int, list[int]]:
    """Return the slow links of each rank's own, for every rank of the job that has some."""
    slow = np.flatnonzero(of.machine.capacity != of.capacity).tolist()
    ways = {rank: near(cluster, rank, slow) for rank in range(cluster.gpus)} if slow else {}
    return {rank: links for rank, links in ways.items() if links}


def _coordinate(job: Job, axis: int) -> Longs:
    """Return the coordinate of each rank of the job along an axis of (tp, cp, dp, pp)."""
    out = np.empty(job.mesh.world, np.int64)
    out[job.ranks] = np.moveaxis(np.arange(job.ranks.shape[axis])[:, None, None, None], 0, axis)
    return out


def _steps(timeline: Timeline) -> Floats:
    """Return the seconds of each step, counted from the end of the step before."""
    return np.diff(ends(timeline), prepend=timeline.start.min(initial=0.0))


def _ints(found: Mapping[str, Mapping[int | str, float]], table: str) -> dict[int, float]:
    return {int(label): slow for label, slow in found.get(table, {}).items()}
