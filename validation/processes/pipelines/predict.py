"""Predicts a run: with mean costs, and with costs drawn at random, many times."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine import simulate
from sim.machine.hardware import ideal
from sim.timeline import Timeline
from validation.processes.pipelines.cores import delays
from validation.processes.pipelines.costs import Costs, Quantiles
from validation.processes.pipelines.graph import graph
from validation.processes.pipelines.priced import Workload, priced

DRAWS = 40
HELD = (0.1, 0.9)
"""The quantiles between which 80 % of steps should lie."""
BETWEEN = 0.16
"""The spread of costs between sittings on one machine: standard deviation of the logarithm of
what a step of the same run costs beyond its stages. Measured on runs of ``traces/data`` recorded
again: 16.3 and 13.5 ms of 1F1B, 34.1 and 26.4 ms of ZB-V; three in one sitting differ by 3 %."""


class Prediction(NamedTuple):
    """The prediction of one run."""

    timeline: Timeline  # with mean costs
    seconds: float  # the median step of the draws
    low: float  # 10 % of the draws are shorter
    high: float  # 10 % are longer
    starts: dict[str, float]  # by compute: the median of its start


def predict(load: Workload, costs: Costs, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Simulate with means once, and with seeded draws of every cost ``draws`` times.

    The interval is of a step in another sitting: what a drawn step takes beyond its stages is
    stretched as one of the sources' steps was, and as sittings differ.
    """
    middle = timeline(load, costs)
    seeds = np.random.SeedSequence(seed).generate_state(draws).tolist()
    drawn = [timeline(load, costs, one) for one in seeds]
    steps = np.array([one.end.max() for one in drawn] or [middle.end.max()])
    without = bare(load)
    held = without + (steps - without) * _sittings(costs, len(steps), seed)
    low, high = np.quantile(held, HELD).tolist()
    starts = np.median([one.start for one in drawn or [middle]], axis=0)
    median = float(np.median(steps))
    return Prediction(middle, median, low, high, computes(middle, starts))


def bare(load: Workload) -> float:
    """Return the seconds of a step whose processes cost nothing; 0 for real layers."""
    if load.stages.seconds is None:
        return 0.0
    return float(timeline(load, Costs("none", defaultdict(Quantiles))).end.max())


def _sittings(costs: Costs, count: int, seed: int) -> NDArray[np.float64]:
    """Return factors of costs in other sittings; a mean of k sources is off by what k are."""
    rng = np.random.default_rng(seed)
    spread = BETWEEN * math.sqrt(1 + 1 / max(len(costs.sources), 1))
    between = np.exp(spread * rng.standard_normal(count))
    return np.asarray(between * rng.choice(costs.stretches or (1.0,), count), np.float64)


def timeline(load: Workload, costs: Costs, seed: int | None = None) -> Timeline:
    """Simulate one step."""
    made = priced(load, costs, seed)
    of = graph(made, delays(made))
    return simulate(of, ideal(of))


def computes(of: Timeline, seconds: NDArray[np.float64]) -> dict[str, float]:
    """Return, for each compute by name, its row of a column of seconds."""
    stream = of.graph.streams.index("compute")
    rows = np.flatnonzero(of.graph.stream == stream)
    return {of.graph.names[of.graph.name[row]]: float(seconds[row]) for row in rows}
