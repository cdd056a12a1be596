"""Which ranks keep others waiting: for every collective, the rank that came last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.analysis.relations import rendezvous
from sim.analysis.weights import weights
from sim.graph import Floats, Ints
from sim.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Lateness:
    """The seconds that ranks wait and keep others waiting, one row per rank in ``ranks``."""

    step: float  # first start to last end of all
    ranks: Ints
    waits: Floats  # for ranks that come later
    causes: Floats  # of waiting on other ranks of the job, summed over them, by coming last
    last: Ints  # collectives to which the rank came last
    stands_for: Floats  # ranks of the job that each row stands for

    @property
    def slowdown(self) -> float:
        """The step over the step without the mean time that a rank waits for others.

        It bounds what stragglers cost: without anybody late, the step could at best be this many
        times faster. It is 1 where nobody waits.
        """
        waiting = float(np.average(self.waits, weights=self.stands_for)) if len(self.ranks) else 0.0
        return self.step / (self.step - waiting) if waiting < self.step else 1.0

    @property
    def worst(self) -> int | None:
        """The rank for which others waited longest; None where nobody waits."""
        return int(self.ranks[self.causes.argmax()]) if self.causes.any() else None


def lateness(timeline: Timeline) -> Lateness:
    """Say how long each rank waits for others, and how long others wait for it."""
    graph, ranks = timeline.graph, timeline.graph.ranks()
    member = np.flatnonzero(np.diff(graph.part_start) > 0)
    arrival, moves = rendezvous(timeline)
    wait = moves[member] - timeline.start[member]
    mine = np.searchsorted(ranks, graph.rank[member])
    theirs = np.searchsorted(ranks, graph.rank[arrival[member]])
    abroad = mine != theirs
    n, count = len(ranks), weights(graph, ranks)
    caused = np.bincount(theirs[abroad], (count[mine] * wait)[abroad], n)
    last = np.unique(arrival[member][abroad])
    return Lateness(
        timeline.seconds,
        ranks,
        np.bincount(mine[abroad], wait[abroad], n).astype(np.float64),
        caused / count,
        np.bincount(np.searchsorted(ranks, graph.rank[last]), minlength=n).astype(np.int32),
        count,
    )
