"""Which ops of a run are alike: the same op of the same program, on another rank or replica.

Alike are ops of one name, place and stream that come as often before on their rank. A place is the
stage where a timeline knows stages, and the rank's position in its pipeline, which the messages
tell: the k-th of the ranks that are joined by them. Pipelines are compared only where the same
positions exchange messages. What is usual among alike ops is the (lower) median of the ranks, each
by the mean of its ops of a kind: one slow rank of a few counts for nothing, noise with what it
comes to.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.analysis.activity import HOST
from sim.analysis.stragglers import replicas
from sim.graph import Floats, Graph, owners
from sim.timeline import Timeline, dimension

Longs = NDArray[np.int64]

KEYS = ["place", "stage", "name", "phase", "microbatch", "layer", "step", "stream"]
_PEER = re.compile(r"[→←]\d+$")  # in the name of a stream


def places(graph: Graph) -> Longs:
    """By rank number: a number for the rank's position in its pipeline; -1 for no rank.

    Two ranks have the same where their pipelines have the same messages between positions.
    """
    pipeline = replicas(graph)
    ranks = np.flatnonzero(pipeline >= 0)
    position = np.full(len(pipeline), -1, np.int64)
    frame = pd.DataFrame({"pipeline": pipeline[ranks]})
    position[ranks] = frame.groupby("pipeline").cumcount()
    shapes: dict[object, int] = {}
    shape = np.full(len(pipeline), -1, np.int64)
    pairs = _messages(graph)
    for k in range(int(pipeline.max(initial=-1)) + 1):
        members = np.flatnonzero(pipeline == k)
        mine = pairs[np.isin(pairs[:, 0], members)]
        edges = frozenset(map(tuple, position[mine].tolist()))
        shape[members] = shapes.setdefault((len(members), edges), len(shapes))
    return np.where(position >= 0, shape * (len(pipeline) + 1) + position, -1)


def _messages(graph: Graph) -> Longs:
    """Pairs of ranks, the lesser first, that are joined by a part of dimension pp; once each."""
    pipeline = np.array([dimension(work) == "pp" for work in graph.works], bool)[graph.part_work]
    rows = np.flatnonzero(pipeline[graph.part])
    frame = pd.DataFrame({"part": graph.part[rows], "rank": graph.rank[_owner(graph)[rows]]})
    ends = frame.groupby("part")["rank"].agg(["min", "max"]).drop_duplicates()
    return ends.to_numpy(np.int64).reshape(-1, 2)


def _owner(graph: Graph) -> Longs:
    return owners(graph.part_start)


def alike(graph: Graph) -> Longs:
    """A number for each set of ops that are alike."""
    frame = pd.DataFrame({key: getattr(graph, key) for key in KEYS if key != "place"})
    frame["place"] = places(graph)[graph.rank]
    frame["rank"], frame["stream"] = graph.rank, _streams(graph)
    nth = frame.groupby([*KEYS, "rank"], sort=False).cumcount()
    return np.asarray(frame.assign(nth=nth).groupby([*KEYS, "nth"], sort=False).ngroup(), np.int64)


def _streams(graph: Graph) -> Longs:
    """A number for each stream: of threads by their order on a rank, else by name without peer."""
    host = np.array([name.startswith((HOST, "thread")) for name in graph.streams], bool)
    names = {_PEER.sub("", name): k for k, name in reversed([*enumerate(graph.streams)])}
    table = np.array([names[_PEER.sub("", name)] for name in graph.streams], np.int64)
    out = table[graph.stream]
    mine = host[graph.stream]
    frame = pd.DataFrame({"rank": graph.rank[mine], "stream": graph.stream[mine]})
    threads = frame.groupby(["rank", "stream"], sort=False).ngroup()
    out[mine] = -1 - (threads - threads.groupby(frame["rank"]).transform("min"))
    return out


def parts_alike(graph: Graph, like: Longs) -> Longs:
    """A number for each set of parts that are alike: as many members, alike those of another."""
    members = pd.Series(like[_owner(graph)]).groupby(graph.part)
    keys = members.agg(["min", "max", "sum", "count"])
    group = keys.groupby([*keys.columns], sort=False).ngroup()
    out = np.full(len(graph.part_work), -1, np.int64)
    out[keys.index.to_numpy()] = group.to_numpy()
    return out


def usual(values: Floats, like: Longs, kind: Longs, rank: Longs, clock: float = 0.0) -> Floats:
    """What each row would have if no rank were slower, or faster, than is usual among its like.

    The lower median of its like, times the lower median over ranks of how far the sum of a rank's
    rows of the ``kind`` is above that. A row keeps what it has where the difference is one that a
    clock of such seconds makes, both of itself and of the sum.
    """
    base = lower_median(values, like)
    frame = pd.DataFrame({"kind": kind, "rank": rank, "values": values, "base": base})
    sums = frame.groupby(["kind", "rank"], sort=False)[["values", "base"]].sum().reset_index()
    safe = np.where(sums["base"] > 0, sums["base"], 1.0)
    ratio = np.where(sums["base"] > 0, sums["values"] / safe, 1.0)
    sums["more"] = lower_median(ratio, sums["kind"].to_numpy())
    more = frame[["kind", "rank"]].merge(sums, on=["kind", "rank"], how="left")["more"].to_numpy()
    level = base * more
    if clock:
        off = frame.assign(off=values - level).groupby(["kind", "rank"], sort=False)["off"]
        sure = np.abs(off.transform("sum")) > 2 * clock * np.sqrt(off.transform("count"))
        level = np.where((np.abs(values - level) <= clock) & ~sure, values, level)
    return np.asarray(level, np.float64)


def clock(timeline: Timeline) -> float:
    """Seconds of the clock's tick where it shows whole microseconds, else 0."""
    seconds = (timeline.end - timeline.start) * 1e6
    whole = np.abs(seconds - np.rint(seconds)) < 1e-3
    return 1.001e-6 if whole.all() else 0.0


def lower_median(values: Floats, group: Longs) -> Floats:
    """Of each row the (lower) median of its group.

    >>> lower_median(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1])).tolist()
    [2.0, 2.0, 2.0, 9.0]
    """
    row = np.unique(group, return_inverse=True)[1]
    size = np.bincount(row)
    first = np.cumsum(size) - size
    return np.asarray(values[np.lexsort((values, row))[first + (size - 1) // 2]][row], np.float64)
