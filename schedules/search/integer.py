"""The exact zero-bubble order, as an integer program (Qi et al. 2023, arXiv:2401.10241).

The start of each step is a real variable; which of two steps of a rank comes first is an integer
one. HiGHS solves the program through scipy, for few ranks and microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product
from math import gcd

from schedules import Plan, Step
from schedules.input_error import InputError
from schedules.search.choice import Objective, length
from schedules.search.zero_bubble import zero_bubble
from schedules.times import Given, Times, exact

RANKS, MICROBATCHES = 4, 6  # HiGHS takes too long beyond these
SECONDS = 120.0

Row = tuple[dict[object, float], float]  # sum of coefficient · variable ≤ bound


def best_order(
    ranks: int,
    microbatches: int,
    limit: float,
    times: Given,
    objective: Objective = "span",
) -> Plan:
    """Return the order that is shortest by ``objective``, at most ``limit`` activations on a rank.

    That is the longest span of a rank, from the start of its first step to the end of its last, or
    the makespan, with a stream of messages for each direction of each pair of ranks.

    Raises InputError for more ranks or microbatches than can be solved, for times of zero, and when
    the solver has not proved its answer in two minutes.
    """
    if ranks > RANKS or microbatches > MICROBATCHES:
        raise InputError(
            f"the exact order is found for up to {RANKS} ranks and {MICROBATCHES} microbatches, "
            f"not {ranks} and {microbatches}; leave exact out"
        )
    start = zero_bubble(ranks, microbatches, limit, times, objective)
    small = _smallest(exact(times, ranks))
    if not min(*small.forward, *small.inputs, *small.weights) > 0:
        raise InputError("the exact order needs F, I and W above zero; leave exact out")
    most = length(start, small, objective)
    least = _least(microbatches, limit, small, objective)
    if most <= least:
        return start
    found = _Program(ranks, microbatches, limit, small, most, objective).solve(least)
    return found if length(found, small, objective) < most else start


def _smallest(times: Times) -> Times:
    """Return the same times in the largest unit in which they are whole numbers."""
    unit = gcd(*(time for kind in times for time in kind)) or 1
    return Times(*([time // unit for time in kind] for kind in times))


def _begins(times: Times) -> list[int]:
    """Return when each rank can start its first forward."""
    passed = map(sum, zip(times.forward, times.hops, strict=False))
    return list(accumulate(passed, initial=0))


def _least(microbatches: int, limit: float, times: Times, objective: Objective) -> int:
    """Return a lower bound of the longest span or the makespan.

    It is a rank's work and its wait for the first gradient, less the forwards that fit into the
    wait; in the makespan, after its lead-in.
    """
    begins = _begins(times) if objective == "makespan" else [0] * len(times.forward)
    ends = []
    for rank, (f, i, w) in enumerate(zip(*times[:3], strict=True)):
        there = sum(times.forward[rank:])
        back = sum(times.inputs[rank + 1 :]) + 2 * sum(times.hops[rank:])
        wait = there + back - f * int(min(microbatches, limit))
        ends.append(begins[rank] + microbatches * (f + i + w) + max(0, wait))
    return max(ends)


class _Program:
    """Variables by name: a Step's is its start, a pair of Steps' is 1 if the first runs first."""

    def __init__(
        self,
        ranks: int,
        microbatches: int,
        limit: float,
        times: Times,
        most: float,
        objective: Objective,
    ) -> None:
        self.ranks, self.microbatches, self.limit = ranks, microbatches, limit
        self.kinds = dict(zip("FIW", times[:3], strict=True))
        self.hops, self.most, self.begin = times.hops, most, _begins(times)
        self.counted = [0] * ranks if objective == "makespan" else self.begin
        self.horizon = most + self.begin[-1]
        self.rows = [row for rank in range(ranks) for row in self._rank(rank)]

    def _seconds(self, step: Step) -> int:
        return self.kinds[step.kind][step.stage]

    def _rank(self, rank: int) -> Iterator[Row]:
        ms = range(self.microbatches)
        for kind, m in product("FIW", ms[1:]):
            yield self._after(Step(rank, kind, m - 1), Step(rank, kind, m))
        for m in ms:
            yield self._after(Step(rank, "F", m), Step(rank, "I", m))
            yield self._after(Step(rank, "I", m), Step(rank, "W", m))
            if rank:
                yield from self._arrives(Step(rank - 1, "F", m), rank, self.hops[rank - 1])
                yield from self._arrives(Step(rank, "I", m), rank - 1, self.hops[rank - 1])
            yield self._memory(rank, m)
        for pair in self._pairs(rank):
            yield from self._either(*pair)
        last = Step(rank, "W", ms[-1])
        yield {last: 1, "length": -1}, self.counted[rank] - self._seconds(last)

    def _pairs(self, rank: int) -> Iterator[tuple[Step, Step]]:
        """Yield the pairs of steps whose order is open.

        The first of a pair belongs to a later microbatch than the second, and is of a kind that
        each microbatch passes earlier.
        """
        for first, second in ("FI", "FW", "IW"):
            for later in range(self.microbatches):
                for m in range(later):
                    yield Step(rank, first, later), Step(rank, second, m)

    def _after(self, first: Step, second: Step, hop: int = 0) -> Row:
        return {first: 1, second: -1}, -self._seconds(first) - hop

    def _arrives(self, sent: Step, to: int, hop: int) -> Iterator[Row]:
        """Yield rows that say: a step waits for its message, and that for those before it."""
        behind = range(sent.microbatch) if hop > self._seconds(sent) else ()
        for m in (*behind, sent.microbatch):
            passed = hop * (sent.microbatch - m + 1)
            target = Step(to, sent.kind, sent.microbatch)
            yield self._after(sent._replace(microbatch=m), target, passed)

    def _either(self, a: Step, b: Step) -> Iterator[Row]:
        """Yield rows that say: one of the two comes first, and what follows from that holds too."""
        big, own = self.horizon, (a, b)
        yield {a: 1, b: -1, own: big}, big - self._seconds(a)
        yield {b: 1, a: -1, own: -big}, -self._seconds(b)
        if a.microbatch - 1 > b.microbatch:  # a before b: so is a's predecessor, and b's successor
            yield {own: 1, (a._replace(microbatch=a.microbatch - 1), b): -1}, 0
            yield {own: 1, (a, b._replace(microbatch=b.microbatch + 1)): -1}, 0
        if a.kind == "F" and b.kind == "I":
            yield {own: 1, (a, b._replace(kind="W")): -1}, 0

    def _memory(self, rank: int, m: int) -> Row:
        """Return the row that bounds the halves of activations held when F of m has run.

        Each forward adds two halves; each I and W that has run before takes one away.
        """
        forward = Step(rank, "F", m)
        before = [Step(rank, kind, n) for kind in "IW" for n in range(m)]
        return {(forward, step): 1 for step in before}, 2 * self.limit - 2 * (m + 1) + len(before)

    def solve(self, least: float) -> Plan:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        names: dict[object, int] = {"length": 0}
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
            raise InputError(
                f"the exact order was not proved within {SECONDS:.0f} s; leave exact out"
            )
        middle = {
            name: answer.x[n] + self._seconds(name) / 2
            for name, n in names.items()
            if isinstance(name, Step)
        }
        order = sorted(middle, key=middle.__getitem__)
        return [[step for step in order if step.stage == rank] for rank in range(self.ranks)]
