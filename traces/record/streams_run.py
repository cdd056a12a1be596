"""Measures on one GPU what slows what, and runs pipelines on streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traces import schedule_csv
from traces.record import streams_overlap, streams_pipeline
from traces.record.workers import Here, Task


def work(task: Task, here: Here) -> dict[str, Any]:
    """Record the overlaps and the steps of every plan; say why if there is no GPU.

    A part that fails leaves the others, and ``skipped`` says why.
    """
    import torch

    from traces.record.stages import spinner

    if not torch.cuda.is_available():
        return {"gpu": None, "plans": {}, "skipped": "no GPU that torch can use"}
    torch.cuda.set_device(0)
    spin = spinner()
    out: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "plans": {}}
    skipped: dict[str, str] = {}

    def guarded(name: str, make: Callable[[], Any], into: dict[str, Any]) -> None:
        try:
            into[name] = make()
        except Exception as error:  # the other parts are worth having
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            torch.cuda.empty_cache()

    for name, text in task["plans"].items():
        plan = schedule_csv.read(text)
        guarded(name, lambda: streams_pipeline.steps(plan, task, spin), out["plans"])  # noqa: B023
    guarded("overlap", lambda: streams_overlap.overlap(task, spin), out)
    guarded("green", lambda: streams_overlap.green(task, spin), out)
    return {**out, "skipped": skipped} if skipped else out
