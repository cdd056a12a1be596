"""Why a rank does not compute: every such interval with its immediate cause.

If several causes hold at one instant, the first of these counts:

- ``exposed_<dimension>``: data of that dimension moves (of several, the first that started moving);
- ``waiting``: a collective or transfer of the rank has started, and a peer has not;
- ``warm_up``: the rank has not computed for any microbatch yet; ``drain``: it will not compute for
  one any more. Where no op tells its microbatch, as in recordings, they are the time before and
  after all computing. Of several steps, each that ends before the next begins has both. A message
  or a collective over stages that waits for the pipeline then does not count as ``waiting``;
- ``dependency``: nothing of the rank has started, and what it does next waits for another rank;
- ``launch``: nothing of it has started, and the host has not launched what it does next;
- ``lag``: none of these holds: a recorded launch gap, or a lag of the graph.

So the causes of a rank sum to step - compute, which is what "bubble" means here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

from sim.analysis.activity import COMPUTE, HOST, Activities, activities, by_rank
from sim.analysis.intervals import Intervals, complement, covering, first_come, union
from sim.analysis.relations import binding, needed, rendezvous
from sim.analysis.steps import laps
from sim.analysis.weights import weights
from sim.graph import Bools, Floats, Ints, Longs
from sim.late import pd
from sim.timeline import Timeline

WARM_UP, DRAIN, WAITING, DEPENDENCY, LAG, LAUNCH = range(6)
CAUSES = ("warm_up", "drain", "waiting", "dependency", "lag", "launch")
PIPELINE = {"pp", "embedding", "twin", "model"}
"""Dimensions whose transfers cross the stages of a pipeline, if there is one ("pp")."""


@dataclass(frozen=True, eq=False)
class Idle:
    """The intervals without computing, one row each, by rank and start."""

    step: float
    ranks: Ints  # the simulated ranks
    stands_for: Floats  # one row per simulated rank
    causes: tuple[str, ...]
    rank: Ints
    start: Floats  # seconds
    end: Floats
    cause: NDArray[np.int16]  # row of causes

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a row per interval: rank, start and end in seconds, cause."""
        columns = {"rank": self.rank, "start": self.start, "end": self.end}
        return pd.DataFrame({**columns, "cause": np.array(self.causes, object)[self.cause]})

    def by_cause(self) -> dict[str, Floats]:
        """Return the seconds of each cause that occurs, one value per simulated rank."""
        shape = (len(self.ranks), len(self.causes))
        cell = np.searchsorted(self.ranks, self.rank) * shape[1] + self.cause
        length = self.end - self.start
        seconds = np.bincount(cell, length, shape[0] * shape[1]).astype(np.float64).reshape(shape)
        return {name: seconds[:, k] for k, name in enumerate(self.causes) if seconds[:, k].any()}


@dataclass(frozen=True)
class Bubble:
    """The time without computing, as a mean over the ranks of the job."""

    idle_share_of_step: float  # idle / step
    idle_over_ideal: float  # idle / busy: what the pipeline papers call the bubble
    by_cause_s: dict[str, float]


def bubble(of: Idle) -> Bubble:
    """Return the idle share in both usual normalisations, and the seconds by cause."""
    share = of.stands_for / of.stands_for.sum() if len(of.ranks) else of.stands_for
    causes = {name: float(seconds @ share) for name, seconds in of.by_cause().items()}
    idle = fsum(causes.values())
    busy = of.step - idle
    return Bubble(
        idle_share_of_step=idle / of.step if of.step else 0.0,
        idle_over_ideal=idle / busy if busy > 0 else 0.0,
        by_cause_s=causes,
    )


def idle(timeline: Timeline) -> Idle:
    """Find every interval in which a rank does not compute, and its cause."""
    graph = timeline.graph
    kinds = activities(graph)
    transfers = tuple(f"exposed_{name}" for name in kinds.names[2:])
    arrival, moves = rendezvous(timeline)
    needs = binding(timeline)
    rows, end = [], laps(timeline)
    for rank, ops in by_rank(graph):
        pieces, cause, last = _rank(timeline, kinds, moves, ops, end)
        undecided = np.flatnonzero(cause == DEPENDENCY)
        need = needed(timeline, needs, arrival, last[undecided])
        cause[undecided[(need < 0) | (graph.rank[need] == rank)]] = LAG
        cause[undecided[_launches(timeline, kinds, needs, last[undecided])]] = LAUNCH
        rows.append((np.full(len(cause), rank, np.int32), *pieces, cause))
    empty = (np.empty(0, np.int32), np.empty(0), np.empty(0), np.empty(0, np.int16))
    columns = [np.concatenate(column) for column in zip(empty, *rows, strict=True)]
    ranks = graph.ranks()
    return Idle(timeline.seconds, ranks, weights(graph, ranks), CAUSES + transfers, *columns)


def _rank(
    timeline: Timeline, kinds: Activities, moves: Floats, ops: Longs, end: Floats
) -> tuple[Intervals, NDArray[np.int16], Longs]:
    """Return a rank's pieces without computing, their causes, and the op that ends each or -1."""
    computes = ops[kinds.code[ops] == kinds.names.index(COMPUTE)]
    transfers = ops[kinds.code[ops] > kinds.names.index(HOST)]
    compute = union(timeline.start[computes], timeline.end[computes])
    idle = complement(compute, *timeline.span)
    owner, moving = first_come(moves[transfers], timeline.end[transfers])
    waiting = union(timeline.start[transfers], moves[transfers])
    others = transfers[~_of_pipeline(kinds)[kinds.code[transfers]]]
    for_peers = union(timeline.start[others], moves[others])
    cut = np.unique(np.concatenate([*idle, *moving, *waiting, *for_peers]))
    at, until = cut[:-1], cut[1:]
    inside = covering(idle, at) >= 0
    at, until = at[inside], until[inside]

    cause = np.where(covering(waiting, at) >= 0, WAITING, DEPENDENCY).astype(np.int16)
    first, last = _pipeline(timeline, computes, end)
    lap = np.minimum(np.searchsorted(end, at, side="right"), len(end) - 1)
    cause[at >= last[lap]] = DRAIN
    cause[at < first[lap]] = WARM_UP
    cause[covering(for_peers, at) >= 0] = WAITING
    k = covering(moving, at)
    dimension = kinds.code[transfers][owner[k[k >= 0]]]
    cause[k >= 0] = dimension - 2 + len(CAUSES)
    pieces, cause = _merge(Intervals(at, until), cause)
    return pieces, cause, starting(timeline, computes, pieces.end)


def _of_pipeline(kinds: Activities) -> Bools:
    """Return a flag per activity: it crosses the stages of a pipeline."""
    across = PIPELINE if "pp" in kinds.names else set()
    return np.isin(kinds.names, [*across])


def _pipeline(timeline: Timeline, computes: Longs, end: Floats) -> tuple[Floats, Floats]:
    """Return when computing for microbatches begins and ends, in seconds, one value per lap."""
    batched = computes[timeline.graph.microbatch[computes] >= 0]
    ops = batched if len(batched) else computes
    first, last = np.full(len(end), np.inf), np.full(len(end), -np.inf)
    if len(end) == 1:
        first[0] = timeline.start[ops].min(initial=np.inf)
        last[0] = timeline.end[ops].max(initial=-np.inf)
        return first, last
    lap = timeline.graph.step[ops]
    np.minimum.at(first, lap, timeline.start[ops])
    np.maximum.at(last, lap, timeline.end[ops])
    return first, last


def _merge(of: Intervals, cause: NDArray[np.int16]) -> tuple[Intervals, NDArray[np.int16]]:
    """Join neighbouring intervals that touch and have the same cause."""
    if not len(cause):
        return of, cause
    opens = np.append(True, (of.start[1:] != of.end[:-1]) | (cause[1:] != cause[:-1]))
    closes = np.append(opens[1:], True)
    return Intervals(of.start[opens], of.end[closes]), cause[opens]


def starting(timeline: Timeline, computes: Longs, instants: Floats) -> Longs:
    """Return the compute op that starts at each instant, -1 where none does."""
    some = computes[timeline.start[computes] < timeline.end[computes]]
    if not len(some):
        return np.full(len(instants), -1, np.int64)
    some = some[np.argsort(timeline.start[some], kind="stable")]
    k = np.minimum(np.searchsorted(timeline.start[some], instants), len(some) - 1)
    return np.where(timeline.start[some[k]] == instants, some[k], -1)


def _launches(timeline: Timeline, kinds: Activities, needs: Longs, ops: Longs) -> Bools:
    """Return a flag for each of ``ops``: what it waited for last is an op of the host."""
    out = ops >= 0
    need = needs[ops[out]]
    out[out] = (need >= 0) & (kinds.code[need] == kinds.names.index(HOST))
    return out
