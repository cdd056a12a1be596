"""Makes the file of a recorded pipeline: a Chrome trace for :mod:`traces.recorded.reader`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any

import numpy as np

import schedules
from schedules import Plan
from schedules.input_error import InputError

THREADS = {"compute": 0, "comm_post": 1, "comm_wait": 1, "action": 2, "step": 3}
_NAMES = {0: "compute", 1: "p2p host calls", 2: "schedule action"}
_CONFIG = ("world", "schedule", "M", "v", "mode", "rt", "T", "overlap", "d", "seq", "mb", "layers",
           "heads", "dtype", "warm", "steps", "keep", "plan", "runtime", "seed")  # fmt: skip

Task = Mapping[str, Any]
Ranks = Sequence[Mapping[str, Any]]  # what each rank returned


def content(task: Task, ranks: Ranks, plan: Plan, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trace: configuration, machine, step times, orders, and events of the kept steps.

    Times are microseconds from when the first rank left the first barrier. Raises InputError unless
    every step of every rank ran as planned.
    """
    mode = "virtual" if task["virtual"] else "real"
    cfg = {**task, "mode": mode, "T": task["virtual"]}
    origin = min(rank["steps"][0]["begin"] for rank in ranks)
    events = [event for at, rank in enumerate(ranks) for event in _rank(at, rank, task, origin)]
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "otherData": {
            "cfg": {key: cfg[key] for key in _CONFIG if cfg.get(key) is not None},
            "world": len(ranks),
            "torch": facts["machine"]["torch"],
            "step_ms_all": step_ms(ranks),
            "orders": {str(at): rank["order"] for at, rank in enumerate(ranks)},
            **facts,
            "device": ranks[0]["device"],
            "noise": noise(task, ranks),
            "steps_as_planned": check(ranks, plan),
            **_traces(ranks),
            **_memory(ranks),
        },
        "traceEvents": events,
    }


def step_ms(ranks: Ranks) -> list[float]:
    """Return the milliseconds of each step, from the last rank's begin to the last rank's end."""
    by_step = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [
        (max(one["end"] for one in step) - max(one["begin"] for one in step)) / 1e6
        for step in by_step
    ]


def check(ranks: Ranks, plan: Plan) -> int:
    """Return how many steps there are. Raises InputError, naming a difference, unless all ran."""
    for rank, (items, found) in enumerate(zip(schedules.flat(plan), ranks, strict=True)):
        wanted = [*map(str, items)]
        for number, step in enumerate(found["steps"]):
            got = [event["name"] for event in step["events"] if event["cat"] == "compute"]
            if wanted != got:
                pairs = zip([*wanted, "nothing"], [*got, "nothing"], strict=False)
                a, b = next((a, b) for a, b in pairs if a != b)
                raise InputError(
                    f"step {number}, rank {rank}: torch ran {b} where the plan has {a}"
                )
    return len(ranks[0]["steps"])


def noise(task: Task, ranks: Ranks) -> dict[str, float]:
    """Return how late virtual steps were, or wall time over CPU time of real ones."""
    computes = [
        event
        for rank in ranks
        for step in rank["steps"]
        for event in step["events"]
        if event["cat"] == "compute"
    ]
    took = np.array([event["end"] - event["begin"] for event in computes]) / 1e6  # ms
    if not task["virtual"]:
        cpu = np.array([event["args"].get("cpu_us", 0.0) for event in computes]) / 1e3
        if not cpu.all():  # on a GPU, other processes take no time from the stage
            return {}
        return {"wall_over_cpu": round(float(np.median(took / cpu)), 4)}
    over = np.sort(took - 1e3 * np.array([_nominal(task, event) for event in computes]))
    return {
        "over_ms_p50": round(float(np.percentile(over, 50)), 4),
        "over_ms_p99": round(float(np.percentile(over, 99)), 4),
    }


def _nominal(task: Task, event: Mapping[str, Any]) -> float:
    """Return the seconds that a virtual step should take outside blocks of two."""
    kind, stage = event["args"]["kind"], event["args"]["stage"]
    given = [task["virtual"][part] for part in ("IW" if kind == "B" else kind)]
    return float(fsum(v[stage] if isinstance(v, list) else v for v in given))


def _rank(at: int, rank: Mapping[str, Any], task: Task, origin: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one rank, names of its threads first."""
    for thread, name in _NAMES.items():
        yield _name("thread_name", at, {"tid": thread}, name)
    steps = rank["steps"][: task["keep"]]
    stages = sorted(
        {event["args"]["stage"] for event in steps[0]["events"] if event["cat"] == "compute"}
    )
    yield _name("process_name", at, {}, f"rank {at} stages {stages}")
    for number, step in enumerate(steps):
        for event in step["events"]:
            yield _event(at, event, origin, event["args"] | {"step": number})
        whole = {"cat": "step", "name": f"step {number}"}
        yield _event(at, {**whole, "begin": step["begin"], "end": step["end"]}, origin, {})


def _event(
    at: int, event: Mapping[str, Any], origin: int, args: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": event["cat"], "name": event["name"], "pid": at,
        "tid": THREADS[event["cat"]], "ts": (event["begin"] - origin) / 1e3,
        "dur": (event["end"] - event["begin"]) / 1e3, "args": dict(args),
    }  # fmt: skip


def _name(kind: str, at: int, where: Mapping[str, int], name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": at, **where, "args": {"name": name}}


def _traces(ranks: Ranks) -> dict[str, Any]:
    names = [rank["trace"] for rank in ranks if rank["trace"]]
    return {"profiler": names} if names else {}


def _memory(ranks: Ranks) -> dict[str, Any]:
    """Return bytes allocated before the steps and at their peak, for each rank on a GPU."""
    found = [rank["memory"] for rank in ranks if rank.get("memory")]
    return {"memory": found} if found else {}
