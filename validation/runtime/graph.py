"""The calls of all processes, and what they cost, as a Graph for the engine.

Per rank the stream ``compute`` runs steps and ``host`` the other calls, each behind the call before
it: one thread. A message is a send and a receive that meet, on a stream per direction as the reader
of recordings has them. It is there ``late`` seconds after its receive was posted, or ``early``
seconds after its send was, whichever is later: a receiver that sleeps has to be woken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from schedules._csv import Move
from sim.graph import Builder, Fixed, Graph
from validation.runtime.calls import Call, Compute, Post, Program, Wait
from validation.runtime.costs import Costs
from validation.runtime.gaps import gaps


class Stages(NamedTuple):
    """The computes of a run."""

    seconds: Mapping[str, float] | None  # of F, I and W, of timed stages; None: real layers
    layers: int = 1  # of a stage with real layers
    overlap: float = 1.0  # of a pair: the time of a member over that of the step alone

    def nominal(self, call: Compute) -> float:
        """Seconds that a timed compute is meant to take."""
        assert self.seconds is not None
        kinds = "IW" if call.step.kind == "B" else call.step.kind
        return sum(self.seconds[kind] for kind in kinds) * (self.overlap if call.paired else 1.0)


class Load(NamedTuple):
    """What processes run, whatever it costs them."""

    program: Program
    stages: Stages
    bytes: float  # of a message


class Draw:
    """Costs drawn one after another from a seeded generator; without a seed, their means."""

    def __init__(self, costs: Costs, seed: int | None) -> None:
        self._spreads, self._busier = costs.spreads, costs.busier
        self._rng = None if seed is None else np.random.default_rng(seed)

    def __call__(self, *names: str) -> tuple[float, ...]:
        """Seconds of these costs, all at the same quantile."""
        spreads = [self._spreads[name] for name in names]
        if self._rng is None:
            return tuple(of.mean * self._busier for of in spreads)
        at = float(self._rng.random())
        return tuple(of.at(at) * self._busier for of in spreads)


class _Posted(NamedTuple):
    """Where one end of a message begins: so many seconds behind an op, or behind second 0."""

    rank: int
    end: Move
    behind: int  # -1: behind nothing
    lag: float


def graph(
    load: Load, costs: Costs, seed: int | None = None, late: frozenset[Move] = frozenset()
) -> Graph:
    """One op per step, per call and per end of a message, steps named as torch names them.

    ``late`` are sends whose receive is posted after them. Their data is copied while the sender
    goes on; the call of any other send copies, and takes longer by that.
    """
    builder, draw = Builder(), Draw(costs, seed)
    copy = costs.more(load.bytes).copy
    posted: list[_Posted] = []
    waits: list[tuple[int, Move]] = []
    for rank, calls in enumerate(load.program):
        last = -1
        for call, before in zip([*calls, None], gaps(calls), strict=True):
            lag = sum(draw(cost)[0] for cost in before)
            for name, stream, seconds, end in _ops(call, load.stages, draw):
                if end is not None:
                    posted.append(_Posted(rank, end, last, lag))
                    seconds += copy if end.end == "SEND" and end not in late else 0.0
                work = Fixed(seconds, "compute" if stream == "compute" else "host")
                last = _add(builder, (name, rank, stream, work), last, lag, **_place(call))
                lag = 0.0
            if isinstance(call, Wait):
                waits += [(last, end) for end in call.ends]
    _messages(builder, posted, waits, draw, costs.more(load.bytes).wire)
    return builder.graph()


def _ops(
    call: Call | None, stages: Stages, draw: Draw
) -> Iterator[tuple[str, str, float, Move | None]]:
    """Name, stream and seconds of a call's ops, and which end of a message each begins."""
    if isinstance(call, Compute):
        yield str(call.step), "compute", _seconds(call, stages, draw), None
    elif isinstance(call, Post):
        for end in call.ends:
            name = "isend" if end.end == "SEND" else "irecv"
            yield name, "host", draw(name)[0], end
    else:
        yield "wait" if call else "end", "host", 0.0, None


def _seconds(call: Compute, stages: Stages, draw: Draw) -> float:
    if stages.seconds is None:
        return draw(call.step.kind)[0] * stages.layers
    return stages.nominal(call) + draw("over")[0]


def _place(call: Call | None) -> dict[str, Any]:
    if not isinstance(call, Compute):
        return {}
    step = call.step
    return {"phase": step.kind, "stage": step.stage, "microbatch": step.microbatch}


def _add(
    builder: Builder,
    op: tuple[str, int, str, Fixed],
    behind: int,
    lag: float,
    **place: Any,
) -> int:
    """Add an op so many seconds behind another; behind nothing, it is the first of its stream."""
    index = builder.add(*op, lag=lag if behind < 0 else 0.0, **place)
    if behind >= 0:
        builder.wait(index, behind, lag)
    return index


def _messages(
    builder: Builder, posted: list[_Posted], waits: list[tuple[int, Move]], draw: Draw, wire: float
) -> None:
    """Both ends of every message, and who waits for them."""
    by_end = {of.end: of for of in posted}
    costs = {of.end: draw("early", "late") for of in posted if of.end.end == "SEND"}
    op: dict[Move, int] = {}
    for of in posted:
        early, late = costs[of.end if of.end.end == "SEND" else of.end.other]
        wakes = max(early - late, 0.0) if of.end.end == "SEND" else 0.0
        work = Fixed(late + wire, "communication", "pp")
        op[of.end] = _end(builder, of, by_end[of.end.other].rank, work, wakes)
    for end in costs:
        builder.join([op[end], op[end.other]])
    for waiter, end in waits:
        if end.end == "RECV":
            builder.wait(waiter, op[end])
        else:  # a receiver that was there before has taken it when the send's call is over
            taken = by_end[end.other]
            if taken.behind >= 0:
                builder.wait(waiter, taken.behind, taken.lag + costs[end][1] + wire)


def _end(builder: Builder, of: _Posted, peer: int, work: Fixed, wakes: float) -> int:
    sends, back = of.end.end == "SEND", "" if of.end.kind == "F" else " grad"
    name = f"{'send' if sends else 'recv'} {of.end if sends else of.end.other}"
    stream = f"pp send →{peer}{back}" if sends else f"pp recv ←{peer}{back}"
    return _add(
        builder, (name, of.rank, stream, work), of.behind, of.lag + wakes,
        phase=of.end.kind, stage=of.end.stage, microbatch=of.end.microbatch,
    )  # fmt: skip
