"""The calls that a process makes to run its part of a pipeline, as torch 2.13 makes them.

torch runs GPipe and 1F1B in loops of their own, and every other order in one runtime that follows
a list of steps and messages. In all of them one thread posts sends and receives, waits for them,
and computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from schedules import Pair, Plan, Step, flat, members
from schedules.csv import Move


class Compute(NamedTuple):
    """Run a step; after the forward of the last stage, compute the loss."""

    step: Step
    loss: bool
    paired: bool = False  # a member of an overlapped pair


class Post(NamedTuple):
    """Begin sends and receives, in this order, in one call."""

    ends: tuple[Move, ...]


class Wait(NamedTuple):
    """Go on when these sends and receives are done."""

    ends: tuple[Move, ...]

    @property
    def only_sends(self) -> bool:
        """Whether it only waits until receivers have taken what was sent."""
        return all(end.end == "SEND" for end in self.ends)


Call = Compute | Post | Wait
Program = list[list[Call]]
"""The calls of each rank, in order."""

LOOPS = ("GPipe", "1F1B")


def loop(name: str, plan: Plan) -> Program:
    """Return torch's loop for a plan with one stage per rank: GPipe, or 1F1B."""
    stages = len(plan)
    of = _gpipe if name == "GPipe" else _one_f_one_b
    return [list(of(steps, stages)) for steps in flat(plan)]


def runtime(rows: Sequence[Sequence[Step | Pair | Move | str]]) -> Program:
    """Return torch's runtime for steps with messages (:func:`traces.schedule_csv.lowered`).

    Each message is a call of its own. A step waits for what it receives; at the end the runtime
    waits for all that was sent, the last first. One member of a pair runs after the other, and what
    they send is sent after both: rows hold it there.
    """
    steps = [s for row in rows for a in row if isinstance(a, Step | Pair) for s in members(a)]
    last = max(step.stage for step in steps)
    return [list(_runtime(row, last)) for row in rows]


def _runtime(row: Sequence[Step | Pair | Move | str], last: int) -> Iterator[Call]:
    received = {a for a in row if isinstance(a, Move) and a.end == "RECV"}
    for action in row:
        if isinstance(action, Move):
            yield Post((action,))
        elif isinstance(action, Step | Pair):
            for step in members(action):
                if step.kind != "W" and (needed := _end(step, "RECV")) in received:
                    yield Wait((needed,))
                yield _compute(step, last)._replace(paired=isinstance(action, Pair))
    for action in reversed(row):
        if isinstance(action, Move) and action.end == "SEND":
            yield Wait((action,))


def _compute(step: Step, last: int) -> Compute:
    return Compute(step, step.kind == "F" and step.stage == last)


def _end(step: Step, end: str) -> Move:
    return Move(step.stage, end, "F" if step.kind == "F" else "B", step.microbatch)


def _ends(step: Step | None, end: str, stages: int) -> tuple[Move, ...]:
    """Return the message that a step receives or sends; none at the pipeline's ends."""
    if step is None:
        return ()
    to_next = (step.kind == "F") == (end == "SEND")
    return () if step.stage == (stages - 1 if to_next else 0) else (_end(step, end),)


def _posted(ends: tuple[Move, ...], wait: bool) -> Iterator[Call]:
    if ends:
        yield Post(ends)
        if wait:
            yield Wait(ends)


def _gpipe(steps: Sequence[Step], stages: int) -> Iterator[Call]:
    """Yield receive, compute, send; at the end of each half, waits for its sends, one by one."""
    for kind in "FB":
        mine = [step for step in steps if step.kind == kind]
        for step in mine:
            yield from _posted(_ends(step, "RECV", stages), wait=True)
            yield _compute(step, stages - 1)
            yield from _posted(_ends(step, "SEND", stages), wait=False)
        for step in mine:
            if sent := _ends(step, "SEND", stages):
                yield Wait(sent)


def _one_f_one_b(steps: Sequence[Step], stages: int) -> Iterator[Call]:
    """Yield warm-up, pairs whose messages go in one call that is waited for, and cool-down."""
    first = next(k for k, step in enumerate(steps) if step.kind == "B")
    final = max(k for k, step in enumerate(steps) if step.kind == "F")
    pending: tuple[Move, ...] = ()
    for k, step in enumerate(steps):
        recv = _ends(step, "RECV", stages)
        before = steps[k - 1] if k else None
        if first <= k <= final + 1:  # with what the step before sends
            yield from _posted(_ends(before, "SEND", stages) + recv, wait=True)
        else:
            if k == final + 2:
                pending = _ends(before, "SEND", stages)
                yield from _posted(pending, wait=False)
            yield from _posted(recv, wait=True)
        yield _compute(step, stages - 1)
        if k < first or k >= final + 2:
            if pending:
                yield Wait(pending)
            pending = ()
            if k != first - 1:
                pending = _ends(step, "SEND", stages)
                yield from _posted(pending, wait=False)
    if len(steps) == final + 2:
        pending = _ends(steps[-1], "SEND", stages)
        yield from _posted(pending, wait=False)
    if pending:
        yield Wait(pending)
