"""Simulates a step on CPU processes, and finds the communication that it does not hide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.analysis.intervals import Intervals, union, within
from sim.engine import simulate
from sim.graph import Floats, Graph
from sim.timeline import Timeline
from validation.processes.cores import CollectiveCost, shared
from validation.processes.steps.costs import Costs, kernel_seconds, messages
from validation.processes.steps.job import blocks

DRAWS = 40


class RankFigures(NamedTuple):
    """The seconds of one rank in one step."""

    rank: int
    busy_s: float  # its main thread runs
    moving_s: float  # some collective of it is under way
    exposed_s: float  # that, while the thread does not run


class Prediction(NamedTuple):
    """The prediction of one run."""

    timeline: Timeline  # with mean costs
    seconds: float  # the median step of the draws
    low: float  # 5 % of the draws are shorter
    high: float  # 5 % are longer
    exposed: float  # the median of the draws, each the mean of its ranks
    exposed_low: float
    exposed_high: float


class PricedGraph(NamedTuple):
    """A graph, and what its kernels and collectives take on average."""

    graph: Graph
    kernels: Floats
    messages: Sequence[CollectiveCost]


def priced(graph: Graph, costs: Costs, mode: str) -> PricedGraph:
    """Price a graph of :mod:`validation.processes.steps.job` with mean costs."""
    return PricedGraph(graph, kernel_seconds(graph, costs, mode), messages(graph, costs))


def step(graph: Graph, costs: Costs, mode: str) -> Timeline:
    """Simulate the step of such a graph with mean costs."""
    return _run(priced(graph, costs, mode), costs.cores)


def predict(graph: Graph, costs: Costs, mode: str, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Simulate with means once, and with seeded draws of every cost ``draws`` times."""
    mean = priced(graph, costs, mode)
    middle = _run(mean, costs.cores)
    seeds = np.random.SeedSequence(seed).generate_state(draws).tolist()
    drawn = [_run(_drawn(mean, costs, mode, one), costs.cores) for one in seeds] or [middle]
    seconds = [float(one.end.max()) for one in drawn]
    exposed = [float(np.mean([row.exposed_s for row in figures(one)])) for one in drawn]
    low, median, high = np.quantile(seconds, [0.05, 0.5, 0.95]).tolist()
    least, usual, most = np.quantile(exposed, [0.05, 0.5, 0.95]).tolist()
    return Prediction(middle, median, low, high, usual, least, most)


def _drawn(mean: PricedGraph, costs: Costs, mode: str, seed: int) -> PricedGraph:
    draw, graph = np.random.default_rng(seed), mean.graph
    ranks = costs.rank_spread.get(blocks(mode), (1.0,))
    rank = draw.choice(ranks, int(graph.rank.max()) + 1)
    kernels = mean.kernels * draw.choice(costs.spread, len(mean.kernels)) * rank[graph.rank]
    times = draw.choice(costs.message_spread, len(mean.messages)).tolist()
    pairs = zip(mean.messages, times, strict=True)
    return PricedGraph(
        graph, kernels, [CollectiveCost(m.latency * x, m.busy * x) for m, x in pairs]
    )


def _run(of: PricedGraph, cores: int) -> Timeline:
    ran = simulate(*shared(*of, cores))
    return Timeline(of.graph, ran.start, ran.end)


def figures(timeline: Timeline) -> list[RankFigures]:
    """Return the figures of every rank, in seconds."""
    graph, out = timeline.graph, []
    moves = np.diff(graph.part_start) > 0
    for rank in graph.ranks().tolist():
        mine = graph.rank == rank
        runs = union(timeline.start[mine & ~moves], timeline.end[mine & ~moves])
        moving = union(timeline.start[mine & moves], timeline.end[mine & moves])
        hidden = float(within(moving, runs).sum())
        out.append(RankFigures(rank, _length(runs), _length(moving), _length(moving) - hidden))
    return out


def _length(of: Intervals) -> float:
    return float((of.end - of.start).sum())
