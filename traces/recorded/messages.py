"""Finds the messages of a recorded pipeline: which computes they connect, and when they arrived."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from schedules import Step
from schedules.input_error import InputError

Event = dict[str, Any]


class RecordedCompute(NamedTuple):
    """One step of the schedule as it ran."""

    step: Step
    rank: int
    start: float
    end: float


class Message(NamedTuple):
    """One transfer between ranks: who made it, who needs it, and when."""

    producer: RecordedCompute
    consumer: RecordedCompute
    sent: float  # posted
    asked: float  # the receive was posted
    arrived: float


def messages(computes: list[RecordedCompute], events: list[Event], path: Path) -> list[Message]:
    """Return every transfer between ranks; the k-th sent to a peer is the k-th it receives."""
    needs = _needs(computes)
    posts: defaultdict[tuple[str, int, int], list[float]] = defaultdict(list)
    waits: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        start = event["ts"] / 1e6
        if event["cat"] == "comm_wait":
            waits[event["pid"]].append((start, start + event["dur"] / 1e6))
        elif event["cat"] == "comm_post":
            for call, peer, *_ in event["args"]["ops"]:
                posts[call, event["pid"], peer].append(start)
    out = []
    for (a, b), pairs in needs.items():
        sent, asked = posts["isend", a, b], posts["irecv", b, a]
        if not len(sent) == len(asked) == len(pairs):
            raise InputError(
                f"{path}: rank {a} sent {len(sent)} messages to rank {b}, which posted "
                f"{len(asked)} receives and needs {len(pairs)}"
            )
        for (producer, consumer), s, r in zip(pairs, sent, asked, strict=True):
            out.append((Message(producer, consumer, s, r, np.inf), waits[b]))
    return _arrivals(out)


def _needs(
    computes: list[RecordedCompute],
) -> dict[tuple[int, int], list[tuple[RecordedCompute, RecordedCompute]]]:
    """Return producers and consumers by pair of ranks, in the order in which they were produced."""
    by_name = {(of.step.stage, of.step.kind, of.step.microbatch): of for of in computes}
    out: defaultdict[tuple[int, int], list[tuple[RecordedCompute, RecordedCompute]]] = defaultdict(
        list
    )
    for of in sorted(computes, key=lambda of: of.end):
        stage, kind, microbatch = of.step.stage, of.step.kind, of.step.microbatch
        if kind == "W":
            continue
        to = (stage + 1, ("F",)) if kind == "F" else (stage - 1, ("B", "I"))
        for other in to[1]:
            consumer = by_name.get((to[0], other, microbatch))
            if consumer and consumer.rank != of.rank:
                out[of.rank, consumer.rank].append((of, consumer))
    return out


def _arrivals(found: list[tuple[Message, list[tuple[float, float]]]]) -> list[Message]:
    """Return the messages with the moments of their arrival.

    A receiver that was waiting when both ends had been posted saw the arrival, at the end of that
    wait. One that came later did not; then the message took as long as is usual among the others.
    """
    waited = []
    for message, waits in found:
        before = [wait for wait in waits if wait[1] <= message.consumer.start]
        waited.append(before[-1] if before else (message.consumer.start,) * 2)
    posted = [max(message.sent, message.asked) for message, _ in found]
    seen = [wait[0] <= at for wait, at in zip(waited, posted, strict=True)]
    took = [wait[1] - at for wait, at, saw in zip(waited, posted, seen, strict=True) if saw]
    usual = float(np.median(took)) if took else 0.0
    return [
        message._replace(arrived=wait[1] if saw else min(wait[1], at + usual))
        for (message, _), wait, at, saw in zip(found, waited, posted, seen, strict=True)
    ]
