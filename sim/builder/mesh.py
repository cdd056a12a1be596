"""Which ranks work together: the axes of parallelism laid over the ranks of a job.

Ranks count up along the innermost axis first, so that its ranks are nearest to each other. Two
meshes share the ranks: (tp, cp, dp, pp) for attention and dense layers, (etp, ep, edp, pp) for
experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError

ORDER = "tp-cp-ep-dp-pp"
_DENSE, _EXPERT = ("tp", "cp", "dp", "pp"), ("etp", "ep", "edp", "pp")


@dataclass(frozen=True)
class Mesh:
    """The degree of each axis, and their ``order``, innermost first.

    ``ep`` takes its ranks from those of ``tp``, ``cp`` and ``dp``; experts are replicated on the
    ranks that are left, ``edp``. In the experts' mesh ``etp`` takes the place of ``tp`` in
    ``order``, and ``edp`` that of ``dp``. Raises InputError for a degree below 1, an ``order`` that
    does not name each axis once, and degrees that do not divide the ranks.

    >>> mesh = Mesh(tp=2, dp=2, pp=2)
    >>> mesh.groups("dp")
    [(0, 2), (1, 3), (4, 6), (5, 7)]
    >>> mesh.coordinates(5)
    {'tp': 1, 'cp': 0, 'dp': 0, 'pp': 1}
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    etp: int = 1
    order: str = ORDER

    def __post_init__(self) -> None:
        for axis in ("tp", "cp", "ep", "dp", "pp", "etp"):
            degree = getattr(self, axis)
            if degree < 1:
                raise InputError(f"{axis} is {degree}; it must be a whole number above 0")
        if sorted(self.order.split("-")) != sorted(ORDER.split("-")):
            raise InputError(f"order is {self.order!r}; it must name each of {ORDER} once")
        if self.world % (self.etp * self.ep * self.pp):
            raise InputError(
                f"etp {self.etp} x ep {self.ep} does not divide the "
                f"{self.world // self.pp} ranks of a pipeline stage"
            )
        if self.ep * self.etp > 1 and not self.order.endswith("pp"):
            raise InputError(f"order is {self.order!r}; with experts pp must be outermost")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Number of replicas of each expert."""
        return self.world // (self.etp * self.ep * self.pp)

    def degree(self, axis: str) -> int:
        """Return how many ranks a group of an axis has.

        Raises ValueError for an unknown axis.
        """
        self._check(axis)
        return int(getattr(self, axis))

    def groups(self, axis: str) -> list[tuple[int, ...]]:
        """Return all groups of an axis: ranks that differ only in its coordinate, in its order.

        Raises ValueError for an unknown axis.
        """
        self._check(axis)
        return self._groups[axis]

    def group_of(self, rank: int, axis: str) -> tuple[int, ...]:
        """Return the group of an axis that a rank belongs to.

        Raises ValueError for an unknown axis or rank.
        """
        self._check(axis)
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is not among the {self.world} ranks")
        axes = self._axes(_DENSE if axis in _DENSE else _EXPERT)
        stride = math.prod(self.degree(inner) for inner in axes[: axes.index(axis)])
        degree = self.degree(axis)
        first = rank - rank // stride % degree * stride
        return tuple(range(first, first + stride * degree, stride))

    def coordinates(self, rank: int, *, expert: bool = False) -> dict[str, int]:
        """Return a rank's coordinate on each axis of the dense mesh, or of the experts' mesh.

        Raises ValueError for an unknown rank.
        """
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is not among the {self.world} ranks")
        axes = _EXPERT if expert else _DENSE
        inner_first = self._axes(axes)
        place = np.unravel_index(rank, [getattr(self, a) for a in reversed(inner_first)])
        at = dict(zip(reversed(inner_first), map(int, place), strict=True))
        return {axis: at[axis] for axis in axes}

    def rank(self, **coordinates: int) -> int:
        """Return the rank with these coordinates on the dense mesh; axes not named count as 0.

        Raises ValueError for a coordinate outside its axis.

        >>> Mesh(tp=2, dp=2, pp=2).rank(tp=1, pp=1)
        5
        """
        out, stride = 0, 1
        for axis in self._axes(_DENSE):
            at = coordinates.get(axis, 0)
            if not 0 <= at < getattr(self, axis):
                raise ValueError(f"{axis} {at} is not among its {getattr(self, axis)} coordinates")
            out += at * stride
            stride *= getattr(self, axis)
        return out

    def _check(self, axis: str) -> None:
        if axis not in {*_DENSE, *_EXPERT}:
            known = ", ".join(dict.fromkeys(_DENSE + _EXPERT))
            raise ValueError(f"no axis {axis!r}; there are {known}")

    def _axes(self, axes: tuple[str, ...]) -> list[str]:
        """Return these axes, innermost first."""
        place = {axis: i for i, axis in enumerate(self.order.split("-"))}
        place |= {"etp": place["tp"], "edp": place["dp"]}
        return sorted(axes, key=place.__getitem__)

    @cached_property
    def _groups(self) -> dict[str, list[tuple[int, ...]]]:
        return {
            axis: [tuple(row) for row in self._table(axis).tolist()]
            for axis in dict.fromkeys(_DENSE + _EXPERT)
        }

    def _table(self, axis: str) -> NDArray[np.int64]:
        """Return one row per group of an axis, ordered by first rank, shape (groups, degree)."""
        axes = self._axes(_DENSE if axis in _DENSE else _EXPERT)[::-1]
        degrees = [getattr(self, a) for a in axes]
        ranks = np.arange(math.prod(degrees)).reshape(degrees)
        rows = np.moveaxis(ranks, axes.index(axis), -1).reshape(-1, getattr(self, axis))
        out: NDArray[np.int64] = rows[np.argsort(rows[:, 0], kind="stable")]
        return out
