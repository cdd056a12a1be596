"""Reads files of the recorder: real runs of torch's pipeline runtime over gloo, as Chrome traces.

There is one process per rank. Thread 0 has every compute, named as torch names steps (``2F0``:
stage 2, forward, microbatch 0); thread 1 has the calls that post sends and receives (``isend``,
``irecv``, with peer and bytes) and wait for them. Times are microseconds of a common clock.
Messages of a pair of ranks arrive in the order in which they were sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from schedules import Step
from schedules.input_error import InputError
from sim.graph import Builder, Fixed
from sim.timeline import Timeline
from traces import cut
from traces.checked import COUNT, LIST, NUMBER, POSITIVE, TABLE, TEXT, check, list_of, row_of
from traces.packed import beginning, content
from traces.recorded.messages import Event, Message, RecordedCompute, messages
from traces.recording import Recording, Report, Selection

MARK = b'"otherData": {"cfg"'
_STEP = re.compile("([0-9]{1,4})([FBIW])([0-9]{1,6})")
FIELDS = {"name": TEXT, "ts": NUMBER, "dur": POSITIVE, "pid": COUNT, "args": TABLE}
ARGS = {"step": COUNT}
POST = {"step": COUNT, "ops": list_of(row_of(TEXT, COUNT))}
"""What is read from each event, and from its args."""


def recognises(path: Path) -> bool:
    """Return whether the recorder wrote this file."""
    return MARK in beginning(path)


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read one recorded run. Raises InputError for a broken file, or a step that is not there."""
    if len(paths) != 1:
        raise InputError(f"a recorded pipeline is one file for all ranks, not {len(paths)}")
    report("reading", 0, 0)
    events = _events(paths[0])
    there = sorted({event["args"]["step"] for event in events})
    if selection.step is not None and selection.step not in there:
        raise InputError(
            f"{paths[0]} has no step {selection.step}; there are {', '.join(map(str, there))}"
        )
    chosen = tuple(there if selection.step is None else [selection.step])
    builder, start, end = Builder(), list[float](), list[float]()
    for number, step in enumerate(chosen):
        report("steps", number, len(chosen))
        mine = [event for event in events if event["args"]["step"] == step]
        for times in _add(builder, mine, number, paths[0]):
            start.append(times[0])
            end.append(times[1])
    timeline = Timeline(builder.graph(), np.array(start), np.array(end))
    timeline = cut.select(timeline, selection)
    counts = cut.counts(timeline.graph)
    return Recording(timeline, "recorded", tuple(paths), counts, steps=chosen)


def _events(path: Path) -> list[Event]:
    """Return computes, posts and waits, in order of their start."""
    try:
        file = orjson.loads(content(path))
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{path} is not a trace that the recorder wrote: {error}") from error
    check(file, {"traceEvents": LIST}, str(path))
    events = []
    for number, event in enumerate(file["traceEvents"]):
        where = f"{path}, event {number}"
        check(event, {"cat": TEXT.or_none()}, where)
        if event.get("cat") in ("compute", "comm_post", "comm_wait"):
            check(event, FIELDS, where)
            check(event["args"], POST if event["cat"] == "comm_post" else ARGS, f"{where}, args")
            events.append(event)
    events.sort(key=lambda event: (event["ts"], event["pid"]))
    if not any(event["cat"] == "compute" for event in events):
        raise InputError(f"{path} holds no computes")
    return events


def _add(
    builder: Builder, events: list[Event], number: int, path: Path
) -> Iterator[tuple[float, float]]:
    """Add the ops of one step, and yield start and end of each."""
    computes = [_compute(event) for event in events if event["cat"] == "compute"]
    found = messages(computes, events, path)
    # in order of their start, so that each stream has its ops in the order in which they ran
    rows: list[tuple[float, int, Any]] = [(of.start, 0, of) for of in computes]
    rows += [(message.sent, 1, message) for message in found]
    rows += [(message.asked, 2, message) for message in found]
    rows.sort(key=lambda row: row[:2])
    ops: dict[tuple[int, Any], int] = {}
    last: dict[int, int] = {}  # rank -> its last compute so far
    for start, sort, of in rows:
        if sort == 0:
            ops[0, of] = last[of.rank] = _add_compute(builder, of, number)
            yield start, of.end
        else:
            ops[sort, of] = op = _add_message(builder, of, sort == 1, number)
            if sort == 2 and of.consumer.rank in last:  # the thread had computed that before
                builder.wait(op, last[of.consumer.rank])
            yield start, max(of.arrived, start)
    for of in found:
        builder.wait(ops[1, of], ops[0, of.producer])
        builder.wait(ops[0, of.consumer], ops[2, of])
        builder.join([ops[1, of], ops[2, of]])


def _compute(event: Event) -> RecordedCompute:
    start, found = event["ts"] / 1e6, _STEP.fullmatch(event["name"])
    if not found:
        raise InputError(f"a compute is called {event['name']!r}; names are such as 2F0")
    step = Step(int(found[1]), found[2], int(found[3]))
    return RecordedCompute(step, event["pid"], start, start + event["dur"] / 1e6)


def _add_compute(builder: Builder, of: RecordedCompute, number: int) -> int:
    return builder.add(
        str(of.step),
        of.rank,
        "compute",
        Fixed(of.end - of.start),
        phase=of.step.kind,
        stage=of.step.stage,
        microbatch=of.step.microbatch,
        step=number,
    )


def _add_message(builder: Builder, of: Message, sends: bool, number: int) -> int:
    step = of.producer.step
    here, peer = of.producer.rank, of.consumer.rank
    backward = "" if step.kind == "F" else " grad"
    seconds = max(of.arrived - max(of.sent, of.asked), 0.0)
    return builder.add(
        f"{'send' if sends else 'recv'} {step}",
        here if sends else peer,
        f"pp send →{peer}{backward}" if sends else f"pp recv ←{here}{backward}",
        Fixed(seconds, "communication", "pp"),
        phase="F" if step.kind == "F" else "B",
        stage=step.stage if sends else of.consumer.step.stage,
        microbatch=step.microbatch,
        step=number,
    )
