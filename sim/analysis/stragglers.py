"""What stragglers cost: how much faster a step would be if all ops of a kind took equally long.

The what-if analysis of "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI '25). Ops keep what they wait for, without the time that the host takes between them. In the
ideal timeline every op of a kind takes the mean of that kind, and every communication the median
once its members are there. A slowdown is a mean step time over that of the ideal timeline: with all
ops as they were, or with those of one rank, stage or kind as they were and all others ideal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.analysis.longest import Paths, Seconds, taken
from sim.analysis.weights import mean, median, op_weights, weights
from sim.graph import Bools, Floats, Graph, Longs, owners
from sim.late import nx, pd
from sim.timeline import Timeline, dimension

WORST_SHARE = 0.03
"""The share of ranks, rounded up, that count as the worst."""

Flags = Bools
Label = TypeVar("Label", int, str)


@dataclass(frozen=True)
class Stragglers:
    """The slowdowns of a timeline (1 is none); the labels of each table are in falling order."""

    slowdown: float
    by_step: Mapping[int, float]
    by_replica: Mapping[int, float]
    """By pipelines that compute side by side, numbered in the order of their lowest ranks."""
    by_stage: Mapping[int, float]
    by_kind: Mapping[str, float]
    worst_ranks: tuple[int, ...]
    """The ranks whose replica and whose stage are both slow, worst first."""
    worst_ranks_share: float
    """The share of the slowdown that goes when only those are made ideal; usually 0 to 1."""
    last_stage_share: float
    """The same share for the last stage."""


def stragglers(timeline: Timeline) -> Stragglers:
    """Estimate how much slower a step is than if all ops of a kind took equally long.

    Each step is run by itself.
    """
    graph = timeline.graph
    whole, best, paths = taken(timeline), equal(timeline), Paths(graph, apart=True)

    def steps(seconds: Seconds) -> Floats:
        return _ends(graph, paths.run(seconds))

    base, least = steps(whole), steps(best)

    def kept(ops: Flags) -> float:
        return float(steps(_mixed(graph, best, whole, ops)).mean() / least.mean())

    def share(ops: Flags) -> float:
        without, lost = steps(_mixed(graph, whole, best, ops)), base.mean() - least.mean()
        return float((base.mean() - without.mean()) / lost) if lost else 0.0

    replica, last = replicas(graph), int(graph.stage.max(initial=-1))
    numbers = np.unique(graph.step).tolist()
    pipelines = sorted({*replica[graph.ranks()].tolist()})
    by_replica = falling({k: kept(replica[graph.rank] == k) for k in pipelines})
    by_stage = falling({k: kept(graph.stage == k) for k in range(last + 1)})
    scores = lesser(graph.rank, graph.stage, replica, by_stage, by_replica)
    worst = _worst(graph, falling(scores))
    return Stragglers(
        slowdown=float(base.mean() / least.mean()),
        by_step=falling(dict(zip(numbers, (base / least).tolist(), strict=True))),
        by_replica=by_replica,
        by_stage=by_stage,
        by_kind=falling({of: kept(graph.name == k) for k, of in enumerate(graph.names)}),
        worst_ranks=worst,
        worst_ranks_share=share(np.isin(graph.rank, worst)),
        last_stage_share=share(graph.stage == last),
    )


def equal(timeline: Timeline) -> Seconds:
    """Return the seconds of ops if all of a name take the same: means, for transfers medians."""
    graph, seconds = timeline.graph, taken(timeline)
    communication = np.array([bool(dimension(work)) for work in graph.works])[graph.work]
    of_op, weight = (seconds.op, graph.name.astype(np.int64)), op_weights(graph)
    op = np.where(communication, median(*of_op, weight), mean(*of_op, weight))
    owner = owners(graph.part_start)
    return Seconds(op, median(seconds.member, graph.name[owner].astype(np.int64), weight[owner]))


def _worst(graph: Graph, ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the first of ``ranks``, so many that they stand for the share that counts as worst."""
    order = np.array([*ranks], np.int32)
    count = weights(graph, order)
    enough = math.ceil(count.sum() * WORST_SHARE)
    return tuple(order[: np.searchsorted(np.cumsum(count), enough) + 1].tolist())


def replicas(graph: Graph) -> Longs:
    """Return for each rank number its pipeline; pipelines are numbered by their lowest rank.

    Ranks of one pipeline exchange messages; a rank without messages is a pipeline by itself.
    """
    pipeline = np.array([dimension(work) == "pp" for work in graph.works])[graph.part_work]
    rows = np.flatnonzero(pipeline[graph.part])
    ranks = graph.ranks()
    links: nx.Graph[int] = nx.Graph()
    links.add_nodes_from(ranks.tolist())
    owner = graph.rank[owners(graph.part_start)[rows]]
    first = pd.Series(owner).groupby(graph.part[rows]).transform("first").to_numpy()
    links.add_edges_from({*zip(owner.tolist(), first.tolist(), strict=True)})
    out = np.full(int(ranks.max(initial=-1)) + 1, -1)
    for k, members in enumerate(sorted(nx.connected_components(links), key=min)):
        out[[*members]] = k
    return out


def _mixed(graph: Graph, base: Seconds, other: Seconds, ops: Flags) -> Seconds:
    """Return the seconds of ``other`` for these ops, and those of ``base`` for all others."""
    members = ops[owners(graph.part_start)]
    return Seconds(np.where(ops, other.op, base.op), np.where(members, other.member, base.member))


def _ends(graph: Graph, timeline: Timeline) -> Floats:
    """Return the seconds of each step that the graph has; all begin at 0 s."""
    ends = pd.Series(timeline.end).groupby(graph.step).max()
    return np.asarray(ends, np.float64)


def lesser(
    rank: NDArray[np.integer],
    stage: NDArray[np.integer],
    replica: Longs,
    by_stage: Mapping[int, float],
    by_replica: Mapping[int, float],
) -> dict[int, float]:
    """Return for each rank the lesser slowdown of its replica and its worst stage, by rank.

    ``rank`` and ``stage`` have one value per op, ``replica`` one per rank number.
    """
    out: dict[int, float] = {}
    places = pd.DataFrame({"rank": rank, "stage": stage}).drop_duplicates().sort_values("rank")
    for r, k in places.to_numpy().tolist():
        if k in by_stage:
            out[r] = max(min(by_stage[k], by_replica[int(replica[r])]), out.get(r, 0.0))
    return out


def falling(table: Mapping[Label, float]) -> dict[Label, float]:
    """Return the table with its largest values first."""
    return dict(sorted(table.items(), key=lambda item: -item[1]))
