"""What one GPU shows of many: what slows what beside it, and a pipeline on streams.

The pipeline's ranks are streams. A step is a kernel of one thread that spins, so that many run at
once; a message is a copy on a stream of its own, and events are what waits for what.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from schedules import Plan, flat, stage_rank
from traces import schedule_csv
from traces.record.clock import StreamClock
from traces.record.workers import Here, Task


def work(task: Task, here: Here) -> dict[str, Any]:
    """The matrix of overlaps and the steps of every plan; says why, where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return {"skipped": "no GPU that torch can use", "plans": {}}
    torch.cuda.set_device(0)
    plans = {name: schedule_csv.read(text) for name, text in task["plans"].items()}
    return {
        "device": torch.cuda.get_device_name(0),
        "overlap": _overlap(task),
        "plans": {name: _pipeline(plan, task) for name, plan in plans.items()},
    }


def _overlap(task: Task) -> list[dict[str, Any]]:
    """Seconds of two kinds of work alone and together on two streams."""
    import torch

    n = task["gemm"]
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    size = 1 << 28
    device, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    works: dict[str, Callable[[], Any]] = {
        "gemm": lambda: a @ b,
        "d2d": lambda: other.copy_(device),
        "h2d": lambda: device.copy_(host, non_blocking=True),
        "d2h": lambda: host.copy_(other, non_blocking=True),
    }
    alone = {name: _together([run])[0] for name, run in works.items()}
    rows = []
    for one, two in itertools.combinations_with_replacement(works, 2):
        repeat = {name: max(1, round(0.02 / alone[name])) for name in (one, two)}
        both = _together([works[one], works[two]], [repeat[one], repeat[two]])
        rows.append(
            {
                "works": [one, two],
                "alone_s": [alone[one] * repeat[one], alone[two] * repeat[two]],
                "together_s": both,
            }
        )
    return rows


def _together(runs: Sequence[Callable[[], Any]], repeat: Sequence[int] = (10, 10)) -> list[float]:
    """Seconds from the common start to the end of each stream; one alone per repetition."""
    import torch

    streams = [torch.cuda.Stream() for _ in runs]
    for run in runs:
        run()
    torch.cuda.synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    ends = [torch.cuda.Event(enable_timing=True) for _ in runs]
    begin.record()
    for stream, run, count, end in zip(streams, runs, repeat, ends, strict=False):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            for _ in range(count):
                run()
            end.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) / 1e3 for end in ends]
    return [times[0] / repeat[0]] if len(runs) == 1 else times


def _pipeline(plan: Plan, task: Task) -> list[dict[str, Any]]:
    """The measured steps of a plan: when each of its steps ran, in nanoseconds from the first."""
    import torch

    from traces.record.stages import PARTS, _on_gpu

    spin, owner = _on_gpu(), stage_rank(plan)
    computing = [torch.cuda.Stream() for _ in plan]
    copying = [torch.cuda.Stream() for _ in plan]
    message, inbox = (
        torch.empty(task["message"], dtype=torch.uint8, device="cuda") for _ in range(2)
    )
    out = []
    for number in range(task["warm"] + task["steps"]):
        clock, done, events = StreamClock(), dict[tuple[int, str, int], Any](), []
        clock.begin()
        for rank, step in issued(plan):
            with torch.cuda.stream(computing[rank]):
                if need := needed(step, len(owner)):
                    computing[rank].wait_event(done[need])
                begin = clock.now()
                spin(0, sum(task["virtual"][part] for part in PARTS[step.kind]))
                end = clock.now()
            events.append((str(step), rank, begin, end))
            to = step.stage + (1 if step.kind == "F" else -1)
            sends = step.kind != "W" and owner.get(to, rank) != rank
            if sends:
                copying[rank].wait_event(end)
                with torch.cuda.stream(copying[rank]):
                    inbox.copy_(message)
                    end = clock.now()
            done[step.stage, "F" if step.kind == "F" else "B", step.microbatch] = end
        clock.end()
        if number >= task["warm"]:
            out.append(_step(events, clock))
    return out


def _step(events: Sequence[tuple[str, int, Any, Any]], clock: StreamClock) -> dict[str, Any]:
    rows = [(name, rank, clock.ns(a), clock.ns(b)) for name, rank, a, b in events]
    first = min(begin for _, _, begin, _ in rows)
    return {
        "seconds": (max(end for *_, end in rows) - first) / 1e9,
        "events": [[name, rank, a - first, b - first] for name, rank, a, b in rows],
    }


def needed(step: Any, stages: int) -> tuple[int, str, int] | None:
    """The step that another stage must have done before, as (stage, F or B, microbatch).

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
    """The plan's steps by rank, in an order in which everything is issued behind what it needs.

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
            raise ValueError("a plan whose steps wait for each other cannot be recorded")
    return out
