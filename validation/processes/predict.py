"""Predicts a step on processes: with mean costs, and with costs drawn at random, many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.graph import Floats, Longs
from sim.timeline import Timeline
from validation.processes.cores import CollectiveCost, Priced, on_cores

DRAWS = 40


class Spreads(NamedTuple):
    """How costs differ from their means: factors that are equally likely."""

    ops: Sequence[tuple[Longs | slice, Sequence[float]]]  # of these ops, each its own
    messages: Sequence[float] = (1.0,)
    ranks: Sequence[float] = (1.0,)  # of all ops of a rank


class Prediction(NamedTuple):
    """The prediction of one step."""

    timeline: Timeline  # with mean costs
    drawn: Sequence[Timeline]  # of the same graph

    @property
    def steps(self) -> Floats:
        """The seconds of the drawn steps, shape (draws,)."""
        return np.array([one.end.max() for one in self.drawn])

    @property
    def seconds(self) -> float:
        """The median of the drawn steps."""
        return float(np.median(self.steps))


def predict(mean: Priced, spreads: Spreads, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Simulate with means once, and with seeded draws of every cost ``draws`` times."""
    middle = on_cores(mean)
    seeds = np.random.SeedSequence(seed).generate_state(draws).tolist()
    return Prediction(middle, [on_cores(drawn(mean, spreads, one)) for one in seeds] or [middle])


def drawn(mean: Priced, spreads: Spreads, seed: int) -> Priced:
    """Return the costs of one step, each its mean times a factor."""
    draw, graph = np.random.default_rng(seed), mean.graph
    factor = draw.choice(spreads.ranks, int(graph.rank.max()) + 1)[graph.rank]
    for rows, some in spreads.ops:
        factor[rows] *= draw.choice(some, len(factor[rows]))
    times = draw.choice(spreads.messages, len(mean.messages)).tolist()
    pairs = zip(mean.messages, times, strict=True)
    messages = [CollectiveCost(m.latency * x, m.busy * x) for m, x in pairs]
    return mean._replace(seconds=mean.seconds * factor, messages=messages)
