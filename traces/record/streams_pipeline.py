"""Runs a pipeline on one GPU: ranks are streams, steps are kernels that spin, messages are copies.

Each kernel that spins has one thread, so many run at once; a message is a copy on a stream of its
own, and events make streams wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Any

from schedules import Plan, flat, stage_rank
from schedules.input_error import InputError
from traces.record import plan as measure
from traces.record.clock import StreamClock
from traces.record.stages import PARTS
from traces.record.workers import Here, Task

GATE = 0.02  # seconds of a spin, behind which the step begins when the host has issued most of it


def steps(
    plan: Plan, task: Task, here: Here, spin: Callable[[float], None]
) -> list[dict[str, Any]]:
    """Return when each step of a plan ran, in nanoseconds from the first, per measured step."""
    import torch

    streams = [[torch.cuda.Stream() for _ in plan] for _ in ("computing", "copying")]
    buffers = [
        torch.empty(task["message"], dtype=torch.uint8, device="cuda").random_() for _ in range(2)
    ]

    def one() -> dict[str, Any]:
        clock = StreamClock()
        clock.begin()
        found = _issue(plan, task, spin, clock, streams, buffers)
        clock.end()
        return _step(*found, clock)

    return measure.steps(task, here, one)


def _issue(
    plan: Plan, task: Task, spin: Callable[[float], None], clock: StreamClock, streams: Any,
    buffers: Any,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """Issue a step: (computes, messages), each as (name, rank, begin, end)."""
    import torch

    owner, done = stage_rank(plan), dict[tuple[int, str, int], Any]()
    computes, copies = list[Any](), list[Any]()
    computing, copying = streams
    spin(GATE)
    gate = clock.now()
    for stream in computing:
        stream.wait_event(gate)
    for rank, step in issued(plan):
        with torch.cuda.stream(computing[rank]):
            if need := needed(step, len(owner)):
                computing[rank].wait_event(done[need])
            begin = clock.now()
            spin(fsum(task["virtual"][part] for part in PARTS[step.kind]))
            end = clock.now()
        computes.append((str(step), rank, begin, end))
        to = step.stage + (1 if step.kind == "F" else -1)
        if step.kind != "W" and owner.get(to, rank) != rank:
            copying[rank].wait_event(end)
            with torch.cuda.stream(copying[rank]):
                begin = clock.now()
                buffers[1].copy_(buffers[0])
                end = clock.now()
            copies.append((f"{step} to stage {to}", rank, begin, end))
        if step.kind != "W":
            done[step.stage, "F" if step.kind == "F" else "B", step.microbatch] = end
    return computes, copies


def _step(computes: Sequence[Any], copies: Sequence[Any], clock: StreamClock) -> dict[str, Any]:
    """Return the seconds of a step, from its first compute to its last, and its events."""
    rows, messages = (
        [(name, rank, clock.ns(a), clock.ns(b)) for name, rank, a, b in some]
        for some in (computes, copies)
    )
    first = min(begin for _, _, begin, _ in rows)
    return {
        "seconds": (max(end for *_, end in rows) - first) / 1e9,
        "events": [[name, rank, a - first, b - first] for name, rank, a, b in rows],
        "messages": [[name, rank, a - first, b - first] for name, rank, a, b in messages],
    }


def needed(step: Any, stages: int) -> tuple[int, str, int] | None:
    """Return the step that another stage must have done before, as (stage, F or B, microbatch).

    >>> from schedules import Step
    >>> needed(Step(1, "F", 3), 2), needed(Step(1, "B", 3), 2), needed(Step(0, "I", 3), 2)
    ((0, 'F', 3), None, (1, 'B', 3))
    """
    if step.kind == "F":
        return (step.stage - 1, "F", step.microbatch) if step.stage else None
    if step.kind == "W" or step.stage == stages - 1:
        return None
    return (step.stage + 1, "B", step.microbatch)


def issued(plan: Plan) -> list[tuple[int, Any]]:
    """Return the plan's steps by rank, in an order in which each is issued after what it needs.

    >>> from schedules import load
    >>> [f"{rank}:{step}" for rank, step in issued(load("gpipe")(2, 1))]
    ['0:0F0', '1:1F0', '1:1B0', '0:0B0']
    """
    rows, stages = flat(plan), len(stage_rank(plan))
    at, done, out = [0] * len(rows), set[tuple[int, str, int]](), list[tuple[int, Any]]()
    while len(out) < sum(map(len, rows)):
        before = len(out)
        for rank, steps in enumerate(rows):
            while at[rank] < len(steps):
                step = steps[at[rank]]
                need = needed(step, stages)
                if need is not None and need not in done:
                    break
                if step.kind != "W":
                    done.add((step.stage, "F" if step.kind == "F" else "B", step.microbatch))
                out.append((rank, step))
                at[rank] += 1
        if len(out) == before:
            raise InputError("a plan whose steps wait for each other cannot be recorded")
    return out
