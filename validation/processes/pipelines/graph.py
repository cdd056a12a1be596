"""Turns the calls of all processes, and what they cost, into a Graph for the engine.

Each rank is one thread: its stream ``compute`` runs steps and ``host`` the other calls, each after
the call before it. A message is a send and a receive that meet, on a stream per direction as the
reader of recordings has them. It is there ``late`` seconds after its receive was posted, or
``early`` seconds after its send was, whichever is later: a receiver that sleeps has to be woken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from schedules.csv import Move
from sim.graph import Builder, Fixed, Graph
from validation.processes.pipelines.calls import Call, Compute, Post, Wait
from validation.processes.pipelines.cores import Delays
from validation.processes.pipelines.priced import PricedCalls


class _Posted(NamedTuple):
    """Where one end of a message begins: so many seconds after an op, or after second 0."""

    rank: int
    end: Move
    behind: int  # the op before; -1: none
    lag: float


def graph(of: PricedCalls, delays: Delays) -> Graph:
    """Return one op per step, call and message end; steps are named as torch names them."""
    builder = Builder()
    posted: list[_Posted] = []
    waits: list[tuple[int, Move]] = []
    for rank, rows in enumerate(of.rows):
        last = -1
        for k, row in enumerate(rows):
            lag, behind = row.lag, delays.calls.get((rank, k), 0.0)
            for (name, stream, end), seconds in zip(_ops(row.call), row.seconds, strict=True):
                if end is not None:
                    posted.append(_Posted(rank, end, last, lag))
                    copies = end.end == "SEND" and end not in delays.late
                    seconds += of.copy if copies else 0.0
                work = Fixed(seconds + behind, "compute" if stream == "compute" else "host")
                last = _add(builder, (name, rank, stream, work), last, lag, **_place(row.call))
                lag = 0.0
            if isinstance(row.call, Wait):
                waits += [(last, end) for end in row.call.ends]
    _messages(builder, posted, waits, of, delays)
    return builder.graph()


def _ops(call: Call | None) -> Iterator[tuple[str, str, Move | None]]:
    """Yield name and stream of a call's ops, and which end of a message each begins."""
    if isinstance(call, Compute):
        yield str(call.step), "compute", None
    elif isinstance(call, Post):
        for end in call.ends:
            yield "isend" if end.end == "SEND" else "irecv", "host", end
    else:
        yield "wait" if call else "end", "host", None


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
    """Add an op so many seconds after another; without one, it is the first of its stream."""
    index = builder.add(*op, lag=lag if behind < 0 else 0.0, **place)
    if behind >= 0:
        builder.wait(index, behind, lag)
    return index


def _messages(
    builder: Builder,
    posted: list[_Posted],
    waits: list[tuple[int, Move]],
    of: PricedCalls,
    delays: Delays,
) -> None:
    """Add both ends of every message, and the waits for them."""
    by_end = {one.end: one for one in posted}
    op: dict[Move, int] = {}
    for one in posted:
        send = one.end if one.end.end == "SEND" else one.end.other
        early, late = of.messages[send]
        wakes = max(early - late, 0.0) if one.end == send else 0.0
        work = Fixed(late + of.wire + delays.messages.get(send, 0.0), "communication", "pp")
        op[one.end] = _end(builder, one, by_end[one.end.other].rank, work, wakes)
    for end in of.messages:
        builder.join([op[end], op[end.other]])
    for waiter, end in waits:
        if end.end == "RECV":
            builder.wait(waiter, op[end])
        else:  # a receiver that was there before has taken it when the send's call is over
            taken = by_end[end.other]
            behind = delays.messages.get(end, 0.0) if end in delays.late else 0.0
            if taken.behind >= 0:
                lag = taken.lag + of.messages[end][1] + of.wire + behind
                builder.wait(waiter, taken.behind, lag)


def _end(builder: Builder, of: _Posted, peer: int, work: Fixed, wakes: float) -> int:
    sends, back = of.end.end == "SEND", "" if of.end.kind == "F" else " grad"
    name = f"{'send' if sends else 'recv'} {of.end if sends else of.end.other}"
    stream = f"pp send →{peer}{back}" if sends else f"pp recv ←{peer}{back}"
    return _add(
        builder, (name, of.rank, stream, work), of.behind, of.lag + wakes,
        phase=of.end.kind, stage=of.end.stage, microbatch=of.end.microbatch,
    )  # fmt: skip
