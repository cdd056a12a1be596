"""Measures on one GPU what slows what, and runs pipelines on streams."""

from __future__ import annotations

from typing import Any

from traces import schedule_csv
from traces.record import streams_overlap, streams_pipeline
from traces.record.plan import guarded
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
    for name, text in task["plans"].items():
        with guarded(skipped, name):
            plan = schedule_csv.read(text)
            out["plans"][name] = streams_pipeline.steps(plan, task, here, spin)
        torch.cuda.empty_cache()
    for name, of in (("overlap", streams_overlap.overlap), ("green", streams_overlap.green)):
        with guarded(skipped, name):
            out[name] = of(task, spin)
        torch.cuda.empty_cache()
    return {**out, "skipped": skipped} if skipped else out
