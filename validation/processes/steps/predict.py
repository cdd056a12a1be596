"""Simulates a step on CPU processes, and finds the communication that it does not hide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.analysis.intervals import Intervals, union, within
from sim.graph import Graph
from sim.timeline import Timeline
from validation.processes import predict as processes
from validation.processes.cores import Priced, on_cores
from validation.processes.predict import DRAWS, Prediction, Spreads
from validation.processes.steps.costs import Costs, kernel_seconds, messages
from validation.processes.steps.job import blocks


class RankFigures(NamedTuple):
    """The seconds of one rank in one step."""

    rank: int
    busy_s: float  # its main thread runs
    moving_s: float  # some collective of it is under way
    exposed_s: float  # that, while the thread does not run


def priced(graph: Graph, costs: Costs, mode: str) -> Priced:
    """Price a graph of :mod:`validation.processes.steps.job` with mean costs."""
    return Priced(graph, costs.cores, kernel_seconds(graph, costs, mode), messages(graph, costs))


def step(graph: Graph, costs: Costs, mode: str) -> Timeline:
    """Simulate the step of such a graph with mean costs."""
    return on_cores(priced(graph, costs, mode))


def predict(graph: Graph, costs: Costs, mode: str, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Predict the step of such a graph."""
    ranks = costs.rank_spread.get(blocks(mode), (1.0,))
    spreads = Spreads([(slice(None), costs.spread)], costs.message_spread, ranks)
    return processes.predict(priced(graph, costs, mode), spreads, draws, seed)


def exposed(predicted: Prediction) -> list[float]:
    """Return exposed communication in seconds, for each draw the mean of its ranks."""
    return [float(np.mean([row.exposed_s for row in figures(of)])) for of in predicted.drawn]


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
