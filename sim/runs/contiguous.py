"""How many layers in a row each stage should hold, where layers are not alike.

Stages hold layers in the order of the model. So a rank's load depends on where its stages begin,
and not on their number of layers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Floats


class Work(NamedTuple):
    """The seconds of stages, and who runs them."""

    layers: Sequence[float]  # of each layer
    fixed: Sequence[float]  # of each stage, without its layers
    teams: Sequence[tuple[tuple[int, ...], int]]  # stages that the same ranks run, and how many

    @property
    def before(self) -> Floats:
        """Seconds of all layers before each, and of all of them, shape (layers + 1,)."""
        return np.array([0.0, *accumulate(self.layers)])


def split(
    layers: Sequence[float],
    fixed: Sequence[float],
    ranks: Mapping[int, Sequence[int]],
    within: float = 0.0,
) -> list[int]:
    """Return the layers of each stage, at least one, that make the slowest rank fastest.

    ``layers`` has the seconds of each, ``fixed`` what a stage takes besides its layers, and
    ``ranks`` says which ranks run each stage, as in :func:`sim.runs.balance.split`. Of the splits
    that are best, or slower by at most the share ``within``, it is the one whose stages differ
    least (the sum of the squares of their seconds is smallest). Exact where a rank runs one stage
    or two; with more, no layer can leave a stage of the slowest rank to make that one faster.

    >>> split([1, 1, 1, 4, 4], [0, 0, 0], {0: [0], 1: [1], 2: [2]})
    [3, 1, 1]
    """
    teams = dict[tuple[int, ...], list[int]]()
    for stage in sorted(ranks):
        teams.setdefault(tuple(ranks[stage]), []).append(stage)
    work = Work(layers, fixed, [(tuple(of), len(team)) for team, of in teams.items()])
    if max(len(of) for of, _ in work.teams) > 2 or not _ordered(work):
        return _climb(work, _even(work))
    return _best(work, within)


def loads(work: Work, counts: Sequence[int]) -> list[float]:
    """Return the seconds of each team for one microbatch of each rank."""
    before, begins = work.before, [0, *accumulate(counts)]
    stage = [work.fixed[s] + before[e] - before[b] for s, (b, e) in enumerate(pairwise(begins))]
    return [sum((stage[s] for s in of), 0.0) / ranks for of, ranks in work.teams]


def _ordered(work: Work) -> bool:
    """Return whether second stages come in the order of the first ones, or in the opposite one."""
    first = [of[0] for of, _ in work.teams]
    second = [of[1] for of, _ in work.teams if len(of) > 1]
    if first != list(range(len(first))):
        return False
    if len(second) == len(first):
        rest = list(range(len(first), 2 * len(first)))
        return second in (rest, rest[::-1])
    return second == list(range(len(work.fixed) - 1, len(first) - 1, -1))


def _best(work: Work, within: float) -> list[int]:
    """Return the best split of all, by a dynamic programme over the teams."""
    count, teams = len(work.layers), len(work.teams)
    second = [of[1] for of, _ in work.teams if len(of) > 1]
    falls = second == sorted(second, reverse=True)  # a V, or no second stages
    middles = [0] if falls else range(teams, count - teams + 1)
    most = max(loads(work, _even(work)))
    for middle in middles:
        most = min(most, _programme(work, middle, most, squares=False)[0])
    most *= 1 + within
    found = [_programme(work, middle, most, squares=True) for middle in middles]
    return min(found, key=lambda one: one[0])[1]


def _programme(work: Work, middle: int, most: float, squares: bool) -> tuple[float, list[int]]:
    """Return the least largest load, or the least sum of squares of stages, and its split.

    A state is the number of layers that first stages have taken from the front, and that second
    stages have taken: from the back of the model, or from ``middle`` on if that is not 0. No load
    is above ``most``. The value is inf if there is no such split.
    """
    count, before = len(work.layers), work.before
    size = (middle or count) + 1, (count - middle) + 1
    value = np.full(size, inf)
    value[0, 0] = 0.0
    chosen = list[NDArray[np.int16]]()
    for of, ranks in work.teams:
        after, taken = np.full(size, inf), np.zeros((*size, 2), np.int16)
        for a, b, first, then in _takes(work, of, before, middle, most * ranks):
            load = (first[:, None] + then[None, :]) / ranks
            left = value[: size[0] - a, : size[1] - b]
            each = (first * first)[:, None] + (then * then)[None, :]
            whole = left + each if squares else np.maximum(left, load)
            whole = np.where(load <= most, whole, inf)
            better = whole < after[a:, b:]
            after[a:, b:][better] = whole[better]
            taken[a:, b:][better] = (a, b)
        value = after
        chosen.append(taken)
    return _read(work, value, chosen, middle)


def _takes(
    work: Work, of: tuple[int, ...], before: Floats, middle: int, most: float
) -> Iterator[tuple[int, int, Floats, Floats]]:
    """Yield how many layers both stages of a team may take, and the seconds in every state."""
    count = len(work.layers)
    front = before[: (middle or count) + 1]
    back = before[middle:] - before[middle] if middle else before[-1] - before[::-1]
    for a in range(1, len(front)):
        first = work.fixed[of[0]] + front[a:] - front[:-a]
        if first.min() > most:
            return
        if len(of) == 1:
            yield a, 0, first, np.zeros(len(back))
            continue
        for b in range(1, len(back)):
            then = work.fixed[of[1]] + back[b:] - back[:-b]
            if first.min() + then.min() > most:
                break
            yield a, b, first, then


def _read(
    work: Work, value: Floats, chosen: Sequence[NDArray[np.int16]], middle: int
) -> tuple[float, list[int]]:
    """Return the value of the best last state, and the layers of each stage on the way there."""
    count = len(work.layers)
    if middle:
        at = (middle, count - middle)
    else:
        ends = [(i, count - i) for i in range(count + 1)]
        at = min(ends, key=lambda end: value[end])
    best, counts = float(value[at]), [0] * len(work.fixed)
    for (of, _), taken in zip(work.teams[::-1], chosen[::-1], strict=True):
        took = taken[at].tolist()
        for stage, layers in zip(of, took, strict=False):
            counts[stage] = layers
        at = (at[0] - took[0], at[1] - took[1])
    return best, counts


def _even(work: Work) -> list[int]:
    each, rest = divmod(len(work.layers), len(work.fixed))
    return [each + (stage < rest) for stage in range(len(work.fixed))]


def _climb(work: Work, counts: list[int]) -> list[int]:
    """Move single layers away from the slowest ranks while that makes the slowest faster."""
    now = sorted(loads(work, counts), reverse=True)
    while True:
        busy = loads(work, counts)
        slowest, _ = work.teams[busy.index(max(busy))]
        tried = [
            (sorted(loads(work, moved), reverse=True), moved)
            for x in slowest
            if counts[x] > 1
            for y in range(len(counts))
            if y not in slowest
            for moved in [[c - (s == x) + (s == y) for s, c in enumerate(counts)]]
        ]
        best = min(tried, default=(now, counts))
        if best[0] >= now:
            return counts
        now, counts = best
