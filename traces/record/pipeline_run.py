"""Records a pipeline on one rank: torch's own runtime, run from our order."""

from __future__ import annotations

import re
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

from traces.record import plan
from traces.record.clock import clock
from traces.record.pipeline_log import Log
from traces.record.stages import recorded
from traces.record.workers import Here, Task


def work(task: Task, here: Here) -> dict[str, Any]:
    """Run the steps of a task; return measured ones' events and bounds, and the runtime's order."""
    import torch
    from torch.distributed.pipelining import schedules

    on_gpu = here.device != "cpu"
    log = Log(clock(here.device), cpu_time=not on_gpu)
    schedule, inputs = _schedule(task, here, log)
    replaced = {
        "record_function": log.action,
        "_batch_p2p": partial(log.post, schedules._batch_p2p),
        "_wait_batch_p2p": partial(log.wait, schedules._wait_batch_p2p),
    }
    kept = {name: getattr(schedules, name) for name in replaced}
    memory = dict[str, int]()

    def begin() -> None:
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            memory["before_bytes"] = torch.cuda.memory_allocated()

    try:
        for name, by in replaced.items():
            setattr(schedules, name, by)
        steps = plan.steps(task, here, lambda: _step(schedule, inputs, log), begin)
        if on_gpu:
            memory["peak_bytes"] = torch.cuda.max_memory_allocated()
        trace = _profiled(schedule, inputs, log, task, here) if task["profile"] else None
    finally:
        for name, was in kept.items():
            setattr(schedules, name, was)
    order = getattr(schedule, "pipeline_order_with_comms", {}).get(here.rank, [])
    return {
        "steps": steps, "order": [*map(str, order)], "trace": trace, "device": here.device,
        "memory": memory,
    }  # fmt: skip


def _step(schedule: Any, inputs: tuple[Any, Any], log: Log) -> dict[str, Any]:
    """Run one step, from the barrier to its end, on the host's clock."""
    for stage in schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]:
        stage.submod.zero_grad()
    log.clock.begin()
    begin = log.clock.now()
    x, target = inputs
    losses: list[Any] = []
    args = () if x is None else (x,)
    quiet = {"return_outputs": False} if "return_outputs" in _options(schedule.step) else {}
    schedule.step(*args, target=target, losses=losses, **quiet)
    end = log.clock.now()
    log.clock.end()
    return {"begin": log.clock.ns(begin), "end": log.clock.ns(end), "events": log.take()}


@cache
def _options(function: Any) -> frozenset[str]:
    """Return what a function of torch's takes, which differs between versions."""
    return frozenset(signature(function).parameters)


def _schedule(task: Task, here: Here, log: Log) -> tuple[Any, tuple[Any, Any]]:
    """Return torch's schedule with this rank's stages, and the step's input and target."""
    import torch
    from torch.distributed.pipelining import schedules

    lines = task["csv"].split("\r\n")
    mine = sorted({int(stage) for stage in re.findall(r"(\d+)F\d+", lines[here.rank])})
    count, stages = task["M"], task["stages"]
    held = [recorded(task, stage, stages, here.device, log) for stage in mine]
    loss = torch.nn.functional.mse_loss
    if task["runtime"] == "class":
        kind = schedules.get_schedule_class(task["schedule"])
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        schedule = kind(held[0] if single else held, count, loss_fn=loss)
    else:
        schedule = schedules._PipelineScheduleRuntime(held, count, loss_fn=loss)
        path = Path(here.folder) / f"order.{here.rank}.csv"
        path.write_text(task["csv"], newline="")
        schedule._load_csv(str(path), "compute_only")
        path.unlink()
    torch.manual_seed(task["seed"])
    dtype = getattr(torch, task.get("dtype", "float32"))
    shape = (count * task["mb"], task["seq"], task["d"])
    x, target = (torch.rand(shape).to(here.device, dtype) for _ in range(2))
    return schedule, (x if 0 in mine else None, target if stages - 1 in mine else None)


def _profiled(
    schedule: Any, inputs: tuple[Any, Any], log: Log, task: Task, here: Here
) -> str | None:
    """Run one more step under torch's profiler; return the name of its trace."""
    import torch.distributed as dist
    from torch import profiler

    path = here.folder / f"{task['file']}_rank{here.rank}.json.gz"
    log.marked = profiler.record_function
    dist.barrier()
    with profiler.profile() as found:
        _step(schedule, inputs, log)
    found.export_chrome_trace(str(path))
    return path.name
