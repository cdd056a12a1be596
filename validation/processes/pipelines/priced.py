"""Prices the calls of all processes: seconds of each call, between calls, of each message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import fsum
from typing import NamedTuple

import numpy as np

from schedules.csv import Move
from validation.processes.pipelines.calls import Call, Compute, Post, Program, Wait
from validation.processes.pipelines.costs import Costs
from validation.processes.pipelines.gaps import gaps


class Stages(NamedTuple):
    """The computes of a run."""

    seconds: Mapping[str, float] | None  # of F, I and W, of timed stages; None: real layers
    layers: int = 1  # of a stage with real layers
    overlap: float = 1.0  # of a pair: the time of a member over that of the step alone

    def nominal(self, call: Compute) -> float:
        """Return the seconds that a timed compute is meant to take."""
        assert self.seconds is not None
        kinds = "IW" if call.step.kind == "B" else call.step.kind
        return fsum(self.seconds[kind] for kind in kinds) * (self.overlap if call.paired else 1.0)


class Workload(NamedTuple):
    """What processes run, whatever it costs them."""

    program: Program
    stages: Stages
    bytes: float  # of a message
    cores: int = 0  # that all processes share; 0: each has its own


class PricedCall(NamedTuple):
    """A call, or None: the end."""

    call: Call | None
    lag: float  # seconds of the thread before it
    seconds: tuple[float, ...]  # of the compute, or of each end that is posted
    sleeps: float = 0.0  # of a timed compute: until it is over but for the thread's waking up


class PricedCalls(NamedTuple):
    """The seconds of one step's calls."""

    rows: list[list[PricedCall]]  # of each rank
    messages: dict[Move, tuple[float, float]]  # by the end that sends: early, late
    copy: float  # of a sender's call, for a receiver that waits
    wire: float
    cores: int  # that all processes share; 0: each has its own
    work: float  # that a timed compute does before it sleeps
    call: float  # of a message's latency: the call that posted its receive

    def ends(self) -> Iterator[Move]:
        """Yield all ends of messages, in the order of ranks and calls."""
        for rows in self.rows:
            for row in rows:
                yield from row.call.ends if isinstance(row.call, Post) else ()


class Draw:
    """Costs drawn one after another from a seeded generator; without a seed, their means."""

    def __init__(self, costs: Costs, seed: int | None) -> None:
        self._spreads, self._busier = costs.spreads, costs.busier
        self._rng = None if seed is None else np.random.default_rng(seed)

    def __call__(self, *names: str) -> tuple[float, ...]:
        """Return the seconds of these costs, all at the same quantile."""
        spreads = [self._spreads[name] for name in names]
        if self._rng is None:
            return tuple(of.mean * self._busier for of in spreads)
        at = float(self._rng.random())
        return tuple(of.at(at) * self._busier for of in spreads)


def priced(load: Workload, costs: Costs, seed: int | None = None) -> PricedCalls:
    """Price all calls, with means of all costs or seeded draws."""
    draw = Draw(costs, seed)
    rows = [
        [
            _row(call, fsum(draw(cost)[0] for cost in before), load.stages, draw)
            for call, before in zip([*calls, None], gaps(calls), strict=True)
        ]
        for calls in load.program
    ]
    more = costs.more(load.bytes)
    call = costs.spreads["irecv"].mean * costs.busier
    made = PricedCalls(rows, {}, more.copy, more.wire, load.cores, costs.work, call)
    sends = (end for end in made.ends() if end.end == "SEND")
    return made._replace(messages={end: _pair(draw("early", "late")) for end in sends})


def _pair(of: tuple[float, ...]) -> tuple[float, float]:
    early, late = of
    return early, late


def _row(call: Call | None, lag: float, stages: Stages, draw: Draw) -> PricedCall:
    if isinstance(call, Compute):
        if stages.seconds is None:
            return PricedCall(call, lag, (draw(call.step.kind)[0] * stages.layers,))
        nominal = stages.nominal(call)
        return PricedCall(call, lag, (nominal + draw("over")[0],), nominal)
    if isinstance(call, Post):
        names = ("isend" if end.end == "SEND" else "irecv" for end in call.ends)
        return PricedCall(call, lag, tuple(draw(name)[0] for name in names))
    return PricedCall(call, lag, (0.0,) if isinstance(call, Wait) or call is None else ())
