"""Predictions of a run: with mean costs, and with costs drawn at random, many times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedules._csv import Move
from sim.engine import simulate
from sim.hardware import ideal
from sim.timeline import Timeline
from validation.runtime.calls import Post
from validation.runtime.costs import Costs
from validation.runtime.graph import Load, graph

DRAWS = 40
PASSES = 4  # at most; who comes first seldom changes more than once


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
    usual = late_sends(load, middle)
    drawn = [timeline(load, costs, one, usual) for one in seeds]
    steps = np.array([one.end.max() for one in drawn] or [middle.end.max()])
    low, median, high = np.quantile(steps, [0.05, 0.5, 0.95]).tolist()
    starts = np.median([one.start for one in drawn or [middle]], axis=0)
    return Prediction(middle, median, low, high, computes(middle, starts))


def timeline(
    load: Load, costs: Costs, seed: int | None = None, late: frozenset[Move] = frozenset()
) -> Timeline:
    """One step. The order in which two ends are posted decides who copies, and is found by trying.

    ``late`` is tried first. A message without more cost for its size needs one pass.
    """
    for _ in range(PASSES):
        made = graph(load, costs, seed, late)
        ran = simulate(made, ideal(made))
        found = late_sends(load, ran) if costs.more(load.bytes).copy else late
        if found == late:
            break
        late = found
    return ran


def computes(of: Timeline, seconds: NDArray[np.float64]) -> dict[str, float]:
    """Of each compute, by name, its row of a column of seconds."""
    stream = of.graph.streams.index("compute")
    rows = np.flatnonzero(of.graph.stream == stream)
    return {of.graph.names[of.graph.name[row]]: float(seconds[row]) for row in rows}


def late_sends(load: Load, ran: Timeline) -> frozenset[Move]:
    """Sends that were posted before their receives."""
    posts = [call for calls in load.program for call in calls if isinstance(call, Post)]
    ends = [end for post in posts for end in post.ends]
    rows = np.flatnonzero(np.diff(ran.graph.part_start) > 0)  # both ends of messages, as posted
    start = dict(zip(ends, ran.start[rows].tolist(), strict=True))
    return frozenset(e for e in ends if e.end == "SEND" and start[e] < start[e.other])
