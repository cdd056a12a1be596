"""Predictions of a run: with mean costs, and with costs drawn at random, many times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine import simulate
from sim.hardware import ideal
from sim.timeline import Timeline
from validation.runtime.cores import delays
from validation.runtime.costs import Costs
from validation.runtime.graph import graph
from validation.runtime.priced import Load, priced

DRAWS = 40


class Prediction(NamedTuple):
    """One run."""

    timeline: Timeline  # with mean costs
    seconds: float  # the median step of the draws
    low: float  # 5 % of the draws are shorter
    high: float  # 5 % are longer
    starts: dict[str, float]  # by compute: the median of its start


def predict(load: Load, costs: Costs, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Simulate with means once, and with seeded draws of every cost ``draws`` times."""
    middle = timeline(load, costs)
    seeds = np.random.SeedSequence(seed).generate_state(draws).tolist()
    drawn = [timeline(load, costs, one) for one in seeds]
    steps = np.array([one.end.max() for one in drawn] or [middle.end.max()])
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95]).tolist()
    starts = np.median([one.start for one in drawn or [middle]], axis=0)
    return Prediction(middle, median, low, high, computes(middle, starts))


def timeline(load: Load, costs: Costs, seed: int | None = None) -> Timeline:
    """One step."""
    made = priced(load, costs, seed)
    of = graph(made, delays(made))
    return simulate(of, ideal(of))


def computes(of: Timeline, seconds: NDArray[np.float64]) -> dict[str, float]:
    """Of each compute, by name, its row of a column of seconds."""
    stream = of.graph.streams.index("compute")
    rows = np.flatnonzero(of.graph.stream == stream)
    return {of.graph.names[of.graph.name[row]]: float(seconds[row]) for row in rows}
