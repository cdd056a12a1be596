"""A helper of analyses: the ops of a run that are alike.

They are the same op of the same program, on another rank or replica.

Two ops are alike if they have the same name, place and stream, and the same number of such ops
before them on their rank. A place is the stage, where a timeline knows stages, and the position of
the rank in its pipeline. The messages tell the position: it is k for the k-th of the ranks that are
joined by messages. Pipelines are compared only if the same positions exchange messages. The usual
time of alike ops is a lower median over ranks, of each rank's mean over its ops of a kind: one slow
rank among a few does not count, and noise counts with its mean.
"""

from __future__ import annotations

import re

import numpy as np

from sim.analysis.activity import HOST
from sim.analysis.stragglers import replicas
from sim.analysis.weights import lower_median
from sim.graph import Floats, Graph, Longs, owners
from sim.late import pd
from sim.timeline import Timeline, dimension

KEYS = ["place", "stage", "name", "phase", "microbatch", "layer", "step", "stream"]
_PEER = re.compile(r"[→←]\d+$")  # in the name of a stream


def places(graph: Graph) -> Longs:
    """Return for each rank number a number of its position in its pipeline; -1 for no rank.

    Two ranks share a number if they have the same position in pipelines whose positions exchange
    the same messages.
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
    """Return each pair of ranks that a part of dimension pp joins, the lower rank first: (n, 2)."""
    pipeline = np.array([dimension(work) == "pp" for work in graph.works], bool)[graph.part_work]
    rows = np.flatnonzero(pipeline[graph.part])
    frame = pd.DataFrame({"part": graph.part[rows], "rank": graph.rank[_owner(graph)[rows]]})
    ends = frame.groupby("part")["rank"].agg(["min", "max"]).drop_duplicates()
    return ends.to_numpy(np.int64).reshape(-1, 2)


def _owner(graph: Graph) -> Longs:
    return owners(graph.part_start)


def alike(graph: Graph) -> Longs:
    """Return a number per op, the same for ops that are alike."""
    frame = pd.DataFrame({key: getattr(graph, key) for key in KEYS if key != "place"})
    frame["place"] = places(graph)[graph.rank]
    frame["rank"], frame["stream"] = graph.rank, _streams(graph)
    nth = frame.groupby([*KEYS, "rank"], sort=False).cumcount()
    return np.asarray(frame.assign(nth=nth).groupby([*KEYS, "nth"], sort=False).ngroup(), np.int64)


def _streams(graph: Graph) -> Longs:
    """Return a number per op for its stream, comparable between ranks.

    Threads of the host are numbered by their order on a rank, other streams by their name without
    the peer.
    """
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
    """Return a number per part, the same for parts with as many members that are alike."""
    members = pd.Series(like[_owner(graph)]).groupby(graph.part)
    keys = members.agg(["min", "max", "sum", "count"])
    group = keys.groupby([*keys.columns], sort=False).ngroup()
    out = np.full(len(graph.part_work), -1, np.int64)
    out[keys.index.to_numpy()] = group.to_numpy()
    return out


def usual(
    values: Floats, like: Longs, kind: Longs, rank: Longs, weight: Floats, clock: float = 0.0
) -> Floats:
    """Return what each row would have if no rank were slower, or faster, than is usual.

    That is the lower median over the rows like it, times a factor of its ``kind``: the lower median
    over ranks of the sum of a rank's rows of the kind over the sum of those medians. ``weight`` has
    how many rows each stands for, the same for those of a rank and kind. ``clock`` is the
    resolution of the clock in seconds. A row keeps its value where rounding to it explains the
    difference, both of the row and of the sum of its rank and kind. All arrays have one value per
    row, and so has the result.
    """
    base = lower_median(values, like, weight)
    frame = pd.DataFrame({"kind": kind, "rank": rank, "values": values, "base": base, "w": weight})
    by = frame.groupby(["kind", "rank"], sort=False)
    sums = by.agg({"values": "sum", "base": "sum", "w": "first"}).reset_index()
    safe = np.where(sums["base"] > 0, sums["base"], 1.0)
    ratio = np.where(sums["base"] > 0, sums["values"] / safe, 1.0)
    sums["more"] = lower_median(ratio, sums["kind"].to_numpy(), sums["w"].to_numpy())
    more = frame[["kind", "rank"]].merge(sums, on=["kind", "rank"], how="left")["more"].to_numpy()
    level = base * more
    if clock:
        off = frame.assign(off=values - level).groupby(["kind", "rank"], sort=False)["off"]
        sure = np.abs(off.transform("sum")) > 2 * clock * np.sqrt(off.transform("count"))
        level = np.where((np.abs(values - level) <= clock) & ~sure, values, level)
    return np.asarray(level, np.float64)


def clock(timeline: Timeline) -> float:
    """Return 1e-6 s if the timeline's clock shows whole microseconds only, else 0."""
    seconds = (timeline.end - timeline.start) * 1e6
    whole = np.abs(seconds - np.rint(seconds)) < 1e-3
    return 1.001e-6 if whole.all() else 0.0
