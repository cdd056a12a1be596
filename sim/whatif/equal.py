"""What kernels and links have if none is slower than its like: the measure of stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.analysis.activity import COMPUTE, activities
from sim.graph import Floats, Graph
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine

PLACE = ["name", "stage", "phase", "microbatch", "layer", "step", "stream"]


def equal_factor(graph: Graph, machine: Machine) -> Floats:
    """A factor for each op under which no rank is slower: a column for ``machine.factor``.

    Where ranks of a stage have other work for the same op (experts of an uneven load), each is
    given the mean of their seconds; times how slow such kernels usually are (:func:`usual`). Where
    all are alike it is what they have, to the bit. Blocks of attention are unlike by their place in
    the sequence (ring attention), which no rank is to blame for, and keep what they take.
    """
    alone = machine.alone[graph.work]
    kernels = np.flatnonzero((np.diff(graph.part_start) == 0) & (alone > 0))
    seconds, out = alone[kernels], np.ones(len(graph))
    by_place = np.array([name.startswith("attention") for name in graph.names], np.bool_)
    even = _mean(seconds, _peers(graph, kernels)) / seconds
    out[kernels] = np.where(by_place[graph.name[kernels]], 1.0, even)
    if machine.factor is not None:
        out[kernels] *= usual(graph, machine.factor, kernels)
    return out


def usual(graph: Graph, factor: Floats, kernels: NDArray[np.int64]) -> Floats:
    """How slow kernels of the same name and phase usually are: a row for each of these kernels.

    Of each rank the mean, of ranks the (lower) median: a slow rank of a few counts for nothing,
    noise and uneven microbatches with what they come to. The study takes the mean of all, which
    among thousands of ranks is the same.
    """
    frame = pd.DataFrame({key: getattr(graph, key)[kernels] for key in ("name", "phase", "rank")})
    like = frame.groupby(["name", "phase"], sort=False).ngroup()
    by_rank = frame.groupby(["name", "phase", "rank"], sort=False).ngroup()
    mean = pd.Series(_mean(factor[kernels], np.asarray(by_rank, np.int64)))
    apart = pd.DataFrame({"like": like, "rank": frame["rank"], "mean": mean}).drop_duplicates()
    median = apart.groupby("like")["mean"].quantile(0.5, interpolation="lower")
    return np.asarray(like.map(median), np.float64)


def _peers(graph: Graph, kernels: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for each kernel, the same for one op on the ranks of a stage."""
    frame = pd.DataFrame({key: getattr(graph, key)[kernels] for key in [*PLACE, "rank"]})
    frame["stage"] = stages(graph)[kernels]
    nth = frame.groupby([*PLACE, "rank"], sort=False).cumcount()
    group = frame.assign(nth=nth).groupby([*PLACE, "nth"], sort=False).ngroup()
    return np.asarray(group, np.int64)


def stages(graph: Graph) -> NDArray[np.int64]:
    """The stage of each op; of those of none, such as the optimizer's, the first of the rank."""
    first = np.full(int(graph.rank.max(initial=0)) + 1, np.iinfo(np.int64).max)
    some = graph.stage >= 0
    np.minimum.at(first, graph.rank[some], graph.stage[some])
    return np.where(some, graph.stage, first[graph.rank])


def _mean(values: Floats, group: NDArray[np.int64]) -> Floats:
    """Of each row the mean of its group; of equal values that value, without rounding."""
    least = pd.Series(values).groupby(group).transform("min").to_numpy()
    more = pd.Series(values - least).groupby(group).transform("mean").to_numpy()
    return np.asarray(least + more, np.float64)


def near(cluster: Cluster, rank: int, links: Sequence[int]) -> list[int]:
    """Return which of these links are a rank's own: inside its node, and on its way to the core."""
    mine = cluster.near(rank)
    return [link for link in links if mine.issuperset(cluster.links[link])]


def levelled(graph: Graph, machine: Machine) -> tuple[Graph, Machine]:
    """Every kernel with the work that takes the (lower) median of those alike on other ranks.

    Alike are kernels of the same name, stage, phase, microbatch, layer, step and stream that come
    as often before on their rank; those of communication stay as they are. What slows
    kernels besides their work is what it usually is (:func:`usual`).
    """
    kinds = activities(graph)
    kernel = (kinds.code == kinds.names.index(COMPUTE)) & (np.diff(graph.part_start) == 0)
    ops = np.flatnonzero(kernel)
    group = _peers(graph, ops)
    order = np.lexsort((ops, machine.alone[graph.work[ops]], group))
    size = np.bincount(group)
    first = np.cumsum(size) - size
    median = graph.work[ops[order[first + (size - 1) // 2]]]
    work = graph.work.copy()
    work[ops] = median[group]
    if machine.factor is not None:
        factor = machine.factor.copy()
        factor[ops] = usual(graph, factor, ops)
        machine = replace(machine, factor=factor)
    return replace(graph, work=work), machine
