"""The exact zero-bubble order, as an integer program (Qi et al. 2023, arXiv:2401.10241).

When each step starts is real, which of two steps of a rank comes first is whole. HiGHS solves it
through scipy, for few ranks and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import gcd

from schedules import Plan, Step
from schedules._timing import longest_span, whole
from schedules._zero_bubble import zero_bubble

RANKS, MICROBATCHES = 4, 6  # beyond these HiGHS takes longer than anybody waits
SECONDS = 120.0

Row = tuple[dict[object, float], float]  # sum of coefficient · variable ≤ bound


def best_order(
    ranks: int, microbatches: int, limit: float, times: tuple[float, float, float, float]
) -> Plan:
    """The order with the least longest own span, at most ``limit`` activations on a rank.

    Raises ValueError for more ranks or microbatches than can be solved, for times of zero, and when
    the solver has not proved its answer in two minutes.
    """
    if ranks > RANKS or microbatches > MICROBATCHES:
        raise ValueError(
            f"the exact order is found for up to {RANKS} ranks and {MICROBATCHES} microbatches, "
            f"not {ranks} and {microbatches}; leave exact out"
        )
    if not min(times[:3]) > 0:
        raise ValueError("the exact order needs F, I and W above zero; leave exact out")
    start = zero_bubble(ranks, microbatches, limit, times)
    exact = whole(*times)
    unit = gcd(*exact)
    f, i, w, hop = (time // unit for time in exact)
    most = longest_span(start, f, i, w, hop)
    least = _least(ranks, microbatches, limit, (f, i, w, hop))
    if most <= least:
        return start
    program = _Program(ranks, microbatches, limit, {"F": f, "I": i, "W": w}, hop, most)
    found = program.solve(least)
    return found if longest_span(found, f, i, w, hop) < most else start


def _least(ranks: int, microbatches: int, limit: float, times: tuple[int, int, int, int]) -> int:
    """No span is shorter: a rank's work and its wait for the first gradient, but for forwards."""
    f, i, w, hop = times
    waits = [
        (later + 1) * f + later * (i + 2 * hop) - f * int(min(microbatches, limit))
        for later in range(ranks)
    ]
    return microbatches * (f + i + w) + max(0, *waits)


class _Program:
    """Variables by name: a Step is its start, a pair of Steps 1 if the first comes first."""

    def __init__(
        self,
        ranks: int,
        microbatches: int,
        limit: float,
        seconds: Mapping[str, int],
        hop: int,
        most: float,
    ) -> None:
        self.ranks, self.microbatches, self.limit = ranks, microbatches, limit
        self.seconds, self.hop, self.most = seconds, hop, most
        self.begin = [rank * (seconds["F"] + hop) for rank in range(ranks)]  # of the first forward
        self.horizon = most + self.begin[-1]
        self.rows = [row for rank in range(ranks) for row in self._rank(rank)]

    def _rank(self, rank: int) -> Iterator[Row]:
        ms = range(self.microbatches)
        for kind, m in product("FIW", ms[1:]):
            yield self._after(Step(rank, kind, m - 1), Step(rank, kind, m))
        for m in ms:
            yield self._after(Step(rank, "F", m), Step(rank, "I", m))
            yield self._after(Step(rank, "I", m), Step(rank, "W", m))
            if rank:
                yield self._after(Step(rank - 1, "F", m), Step(rank, "F", m), self.hop)
                yield self._after(Step(rank, "I", m), Step(rank - 1, "I", m), self.hop)
            yield self._memory(rank, m)
        for pair in self._pairs(rank):
            yield from self._either(*pair)
        last = Step(rank, "W", ms[-1])
        yield {last: 1, "span": -1}, self.begin[rank] - self.seconds["W"]

    def _pairs(self, rank: int) -> Iterator[tuple[Step, Step]]:
        """Steps whose order is open: a later microbatch's at an earlier point of its way."""
        for first, second in ("FI", "FW", "IW"):
            for later in range(self.microbatches):
                for m in range(later):
                    yield Step(rank, first, later), Step(rank, second, m)

    def _after(self, first: Step, second: Step, hop: int = 0) -> Row:
        return {first: 1, second: -1}, -self.seconds[first.kind] - hop

    def _either(self, a: Step, b: Step) -> Iterator[Row]:
        """One of the two comes first; those between whom it is known are consistent with it."""
        big, own = self.horizon, (a, b)
        yield {a: 1, b: -1, own: big}, big - self.seconds[a.kind]
        yield {b: 1, a: -1, own: -big}, -self.seconds[b.kind]
        if a.microbatch - 1 > b.microbatch:  # if a is before b, so are what is before a and ...
            yield {own: 1, (a._replace(microbatch=a.microbatch - 1), b): -1}, 0
            yield {own: 1, (a, b._replace(microbatch=b.microbatch + 1)): -1}, 0
        if a.kind == "F" and b.kind == "I":
            yield {own: 1, (a, b._replace(kind="W")): -1}, 0

    def _memory(self, rank: int, m: int) -> Row:
        """Halves held once F of m is there: two per forward less what is not behind it."""
        forward = Step(rank, "F", m)
        before = [Step(rank, kind, n) for kind in "IW" for n in range(m)]
        return {(forward, step): 1 for step in before}, 2 * self.limit - 2 * (m + 1) + len(before)

    def solve(self, least: float) -> Plan:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        names: dict[object, int] = {"span": 0}
        for row, _ in self.rows:
            for name in row:
                names.setdefault(name, len(names))
        entries = [
            (value, n, names[name])
            for n, (row, _) in enumerate(self.rows)
            for name, value in row.items()
        ]
        values, at, of = zip(*entries, strict=True)
        matrix = coo_array((values, (at, of)), shape=(len(self.rows), len(names))).tocsr()
        whole = np.array([isinstance(name, tuple) and not isinstance(name, Step) for name in names])
        low, high = np.zeros(len(names)), np.where(whole, 1.0, self.horizon)
        low[0], high[0] = least, self.most
        for rank, begin in enumerate(self.begin):
            low[names[Step(rank, "F", 0)]] = high[names[Step(rank, "F", 0)]] = begin
        answer = milp(
            np.eye(1, len(names))[0],
            integrality=whole,
            bounds=Bounds(low, high),
            constraints=LinearConstraint(matrix, ub=[bound for _, bound in self.rows]),
            options={"time_limit": SECONDS},
        )
        if answer.status != 0:
            raise ValueError(
                f"the exact order was not proved within {SECONDS:.0f} s; leave exact out"
            )
        middle = {
            name: answer.x[n] + self.seconds[name.kind] / 2
            for name, n in names.items()
            if isinstance(name, Step)
        }
        order = sorted(middle, key=middle.__getitem__)
        return [[step for step in order if step.stage == rank] for rank in range(self.ranks)]
