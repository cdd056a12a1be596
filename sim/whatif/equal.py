"""The ideal against which stragglers are measured: kernels and links none of which is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.analysis.activity import COMPUTE, activities
from sim.analysis.weights import lower_median, mean, middle_rows, op_weights
from sim.graph import Floats, Graph, Longs
from sim.late import pd
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine

PLACE = ["name", "stage", "phase", "microbatch", "layer", "step", "stream"]


def equal_factor(graph: Graph, machine: Machine) -> Floats:
    """Return a factor for each op under which no rank is slower: a column for ``machine.factor``.

    Where the ranks of a stage have different work for the same op (experts of an uneven load), each
    gets the mean of their seconds. This is multiplied by how slow such kernels usually are
    (:func:`usual`). Where all are alike, the factor is what they have, to the bit. Blocks of
    attention differ by their place in the sequence (ring attention), for which no rank is to blame:
    they keep what they take.
    """
    alone = machine.alone[graph.work]
    kernels = np.flatnonzero((np.diff(graph.part_start) == 0) & (alone > 0))
    seconds, out = alone[kernels], np.ones(len(graph))
    by_place = np.array([name.startswith("attention") for name in graph.names], np.bool_)
    even = _mean(seconds, _peers(graph, kernels), op_weights(graph)[kernels]) / seconds
    out[kernels] = np.where(by_place[graph.name[kernels]], 1.0, even)
    if machine.factor is not None:
        out[kernels] *= usual(graph, machine.factor, kernels)
    return out


def usual(graph: Graph, factor: Floats, kernels: Longs) -> Floats:
    """Return how slow kernels of the same name and phase usually are, one value per kernel.

    It is the mean over the kernels of each rank, and then the lower median over ranks. So one slow
    rank among a few does not count, while noise and uneven microbatches count with their mean. The
    study takes the mean over all ranks, which is the same among thousands of ranks.
    """
    like = _numbers(graph, kernels, ["name", "phase"])
    by_rank = _numbers(graph, kernels, ["name", "phase", "rank"])
    own = _mean(factor[kernels], by_rank, np.ones(len(kernels)))
    _, first, row = np.unique(by_rank, return_index=True, return_inverse=True)
    weight = op_weights(graph)[kernels[first]]
    return lower_median(own[first], like[first], weight)[row]


def _numbers(graph: Graph, kernels: Longs, columns: list[str]) -> Longs:
    """Return a number for each kernel, the same where all these columns are."""
    frame = pd.DataFrame({key: getattr(graph, key)[kernels] for key in columns})
    return np.asarray(frame.groupby(columns, sort=False).ngroup(), np.int64)


def _peers(graph: Graph, kernels: Longs) -> Longs:
    """Return a number for each kernel: the same for the same op on all ranks of a stage."""
    frame = pd.DataFrame({key: getattr(graph, key)[kernels] for key in [*PLACE, "rank"]})
    frame["stage"] = stages(graph)[kernels]
    nth = frame.groupby([*PLACE, "rank"], sort=False).cumcount()
    group = frame.assign(nth=nth).groupby([*PLACE, "nth"], sort=False).ngroup()
    return np.asarray(group, np.int64)


def stages(graph: Graph) -> Longs:
    """Return the stage of each op; for one without, such as the optimizer's, its rank's first."""
    first = np.full(int(graph.rank.max(initial=0)) + 1, np.iinfo(np.int64).max)
    some = graph.stage >= 0
    np.minimum.at(first, graph.rank[some], graph.stage[some])
    return np.where(some, graph.stage, first[graph.rank])


def _mean(values: Floats, group: Longs, weight: Floats) -> Floats:
    """Return for each row the mean of its group; equal values give that value to the bit."""
    least = pd.Series(values).groupby(group).transform("min").to_numpy()
    return np.asarray(least + mean(values - least, group, weight), np.float64)


def near(cluster: Cluster, rank: int, links: Sequence[int]) -> list[int]:
    """Return those of ``links`` that are a rank's own: in its node, and on its way to the core."""
    mine = cluster.near(rank)
    return [link for link in links if mine.issuperset(cluster.links[link])]


def levelled(graph: Graph, machine: Machine) -> tuple[Graph, Machine]:
    """Give every kernel the median work of the kernels like it; return the graph and machine.

    Two kernels are alike if they have the same name, stage, phase, microbatch, layer, step and
    stream, and the same number of such kernels before them on their rank. The work is the one that
    takes the lower median of their seconds; communication stays as it is. The factor by which
    kernels are slowed becomes the usual one (:func:`usual`).
    """
    kinds = activities(graph)
    kernel = (kinds.code == kinds.names.index(COMPUTE)) & (np.diff(graph.part_start) == 0)
    ops = np.flatnonzero(kernel)
    seconds, weight = machine.alone[graph.work[ops]], op_weights(graph)[ops]
    work = graph.work.copy()
    work[ops] = graph.work[ops[middle_rows(seconds, _peers(graph, ops), weight)]]
    if machine.factor is not None:
        factor = machine.factor.copy()
        factor[ops] = usual(graph, factor, ops)
        machine = replace(machine, factor=factor)
    return replace(graph, work=work), machine
