"""A helper of analyses: what each simulated rank stands for, and means and medians with that.

Of ranks that are proven alike one is simulated (``graph.stands_for``). Whatever adds, averages or
ranks over ranks counts it as often, and so gives what it would give if all ranks were simulated.
"""

from __future__ import annotations

import numpy as np

from sim.graph import Communication, Floats, Graph, Ints, Longs, owners
from sim.late import pd


def weights(graph: Graph, ranks: Ints) -> Floats:
    """Return for each of ``ranks`` the number of ranks of the job that it stands for."""
    return np.array([graph.stands_for.get(rank, 1) for rank in ranks.tolist()], np.float64)


def op_weights(graph: Graph) -> Floats:
    """Return for each op the number of ranks that run it: those that its rank stands for, (n,)."""
    return weights(graph, graph.ranks())[graph.rank_rows()]


def part_weights(graph: Graph) -> Floats:
    """Return for each part the number of collectives or messages that it stands for, (parts,).

    Each member stands for as many ranks, and each of these is in one of them.
    """
    members = np.bincount(graph.part, op_weights(graph)[owners(graph.part_start)], _parts(graph))
    return np.asarray(members / np.maximum(part_sizes(graph), 1), np.float64)


def part_sizes(graph: Graph) -> Longs:
    """Return the number of ranks in each part, also of those that are not simulated, (parts,)."""
    known = [len(w.ranks) if isinstance(w, Communication) else 0 for w in graph.works]
    size = np.array(known, np.int64)[graph.part_work]
    return np.where(size > 0, size, np.bincount(graph.part, minlength=_parts(graph)))


def _parts(graph: Graph) -> int:
    return len(graph.part_work)


def mean(values: Floats, group: Longs, weight: Floats) -> Floats:
    """Return for each row the mean of its group.

    >>> mean(np.array([2.0, 5.0, 7.0]), np.array([0, 0, 1]), np.array([2.0, 1.0, 4.0])).tolist()
    [3.0, 3.0, 7.0]
    """
    frame = pd.DataFrame({"sum": weight * values, "weight": weight})
    sums = frame.groupby(group).transform("sum")
    return np.asarray(sums["sum"] / sums["weight"], np.float64)


def lower_median(values: Floats, group: Longs, weight: Floats) -> Floats:
    """Return for each row the lower median of its group.

    >>> lower_median(np.array([3.0, 1.0, 2.0, 9.0]), np.array([0, 0, 0, 1]), np.ones(4)).tolist()
    [2.0, 2.0, 2.0, 9.0]
    """
    row, order, at = _middle(values, group, weight, at_least=True)
    return np.asarray(values[order[at]][row], np.float64)


def median(values: Floats, group: Longs, weight: Floats) -> Floats:
    """Return for each row the median of its group, of an even number the mean of the middle two.

    >>> median(np.array([3.0, 1.0, 9.0]), np.zeros(3, np.int64), np.array([1.0, 2.0, 1.0])).tolist()
    [2.0, 2.0, 2.0]
    """
    row, order, low = _middle(values, group, weight, at_least=True)
    _, _, high = _middle(values, group, weight, at_least=False)
    return np.asarray((0.5 * (values[order[low]] + values[order[high]]))[row], np.float64)


def middle_rows(values: Floats, group: Longs, weight: Floats) -> Longs:
    """Return for each row the row that has the lower median of its group; the first of equals."""
    row, order, at = _middle(values, group, weight, at_least=True)
    return np.asarray(order[at][row], np.int64)


def _middle(
    values: Floats, group: Longs, weight: Floats, *, at_least: bool
) -> tuple[Longs, Longs, Longs]:
    """Return each row's group, all rows by group and value, and where each group's median is.

    The median is the first value up to which there is half of the weight, or more than half.
    """
    row = np.unique(group, return_inverse=True)[1]
    order = np.lexsort((values, row))
    below, last = np.cumsum(weight[order]), np.cumsum(np.bincount(row)) - 1
    whole = np.bincount(row, weight)
    half = below[last] - 0.5 * whole
    at = np.searchsorted(below, half, side="left" if at_least else "right")
    return row, order, np.clip(at, last - np.bincount(row) + 1, last)
