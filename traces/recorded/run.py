"""Reads what a recorder's file says about its run beyond a timeline: settings, calls, step lengths.

:mod:`traces.recorded.reader` makes a Timeline of such a file; a model of the process that ran it
also needs what that process did between its computes: each call, in order, with its begin and end.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from schedules.csv import Rows, parse
from schedules.input_error import InputError
from traces.packed import content

COMPUTE, POST, WAIT = "compute", "comm_post", "comm_wait"


class Call(NamedTuple):
    """One call of a rank's thread; seconds from the recording's begin."""

    kind: str  # COMPUTE, POST or WAIT
    name: str  # a compute's: 2F0
    start: float
    end: float
    ops: tuple[tuple[str, int, int], ...] = ()  # a post's: isend or irecv, peer, bytes
    cpu: float | None = None  # a compute's seconds of a core, if the file has them


class StepCalls(NamedTuple):
    """One training step; all by rank."""

    calls: Sequence[Sequence[Call]]
    left: Sequence[float]  # when each rank left the barrier before the step
    ended: Sequence[float]

    @property
    def begin(self) -> float:
        """The instant at which the last rank left the barrier: the step's second 0."""
        return max(self.left)

    @property
    def seconds(self) -> float:
        """The time from the last rank that left the barrier to the last that ended."""
        return max(self.ended) - self.begin


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One file of the recorder."""

    path: Path
    digest: str  # SHA-256 of the file's content, uncompressed
    settings: Mapping[str, Any]  # world, schedule, M, v, mode, T, ...
    orders: Rows  # what torch's runtime was told to do, messages included; empty for torch's loops
    seconds: Sequence[float]  # of all timed steps, which are more than those with calls
    steps: Sequence[StepCalls]
    numbers: Sequence[int]  # the file's numbers of these steps
    cores: int | None = None  # the machine's, if the file has them

    @property
    def name(self) -> str:
        """The file's name without its endings."""
        return self.path.name.split(".json")[0]

    @property
    def ranks(self) -> int:
        """The number of processes that ran."""
        return int(self.settings["world"])

    def message_bytes(self) -> float:
        """Return the bytes of a message; 0 if there was none. Raises InputError if they differ."""
        found = {
            op[2]
            for step in self.steps
            for calls in step.calls
            for call in calls
            for op in call.ops
        }
        if len(found) > 1:
            raise InputError(f"{self.path}: messages of {len(found)} sizes; one was expected")
        return float(max(found, default=0))


def read(path: Path) -> RecordedRun:
    """Read a file of the recorder. Raises InputError for what is none."""
    try:
        text = content(path)
        file = orjson.loads(text)
        about, events = file["otherData"], file["traceEvents"]
        settings = {"world": about.get("world"), **about["cfg"]}
        steps = _steps(events, int(settings["world"]))
        return RecordedRun(
            path,
            hashlib.sha256(text).hexdigest(),
            settings,
            _orders(about.get("orders") or {}),
            [float(ms) / 1e3 for ms in about["step_ms_all"]],
            list(steps.values()),
            list(steps),
            (about.get("machine") or {}).get("cores"),
        )
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, SyntaxError) as error:
        raise InputError(f"{path} is not a run that the recorder wrote: {error!r}") from error


def _orders(found: Any) -> Rows:
    """Return the actions of every rank, which are JSON or text as Python prints them."""
    orders = ast.literal_eval(found) if isinstance(found, str) else found
    rows = [orders[key] for key in sorted(orders, key=int)]
    if not any(rows):
        return []
    return parse("\n".join(",".join(_quoted(cell) for cell in row) for row in rows))


def _quoted(cell: str | None) -> str:
    return f'"{cell}"' if cell else ""


def _steps(events: Sequence[Mapping[str, Any]], ranks: int) -> dict[int, StepCalls]:
    calls: dict[int, list[list[Call]]] = {}
    bounds: dict[int, dict[int, tuple[float, float]]] = {}
    for event in sorted(events, key=lambda event: event.get("ts", 0.0)):
        start, end = (event.get("ts", 0.0) + d for d in (0.0, event.get("dur", 0.0)))
        if event.get("cat") == "step":
            number = int(event["name"].split()[-1])
            bounds.setdefault(number, {})[event["pid"]] = (start / 1e6, end / 1e6)
        elif event.get("cat") in (COMPUTE, POST, WAIT):
            ops = tuple((op[0], op[1], op[2]) for op in event["args"].get("ops", ()))
            cpu = event["args"].get("cpu_us")
            cpu = None if cpu is None else cpu / 1e6
            call = Call(event["cat"], event["name"], start / 1e6, end / 1e6, ops, cpu)
            mine = calls.setdefault(event["args"]["step"], [[] for _ in range(ranks)])
            mine[event["pid"]].append(call)
    if not calls or bounds.keys() < calls.keys():
        raise KeyError("steps")
    return {
        number: StepCalls(
            calls[number],
            [bounds[number][rank][0] for rank in range(ranks)],
            [bounds[number][rank][1] for rank in range(ranks)],
        )
        for number in sorted(calls)
    }
