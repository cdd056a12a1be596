"""Records plans in torch's pipeline runtime: what is asked for, and the file that results."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import schedules
from schedules import Plan
from schedules.input_error import InputError
from sim.files import replacing, writable
from traces import schedule_csv
from traces.record import machine, pipeline_file, workers

TORCH_NAMES = {
    "gpipe": "GPipe",
    "one_f_one_b": "1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}
"""Our schedules that torch has a class for."""

Seconds = float | list[float]


class PipelineOptions(NamedTuple):
    """How to record pipelines."""

    virtual: dict[str, Seconds] | None = None  # seconds of F, I, W; real stages without
    steps: int = 10
    warm: int = 2
    keep: int | None = None  # steps whose events are written; all unless given
    message: int = 4096  # bytes between virtual stages
    runtime: str = "csv"  # from our order; or "class", torch's own schedule of that name
    overlap: float = 1.0  # factor of times inside blocks of a forward and a backward, virtual only
    fifo: bool = False
    profile: bool = False
    seed: int = 0
    timeout: float = 600.0
    device: str = "auto"
    sizes: dict[str, Any] | None = None  # sizes of real stages, in place of REAL's


VIRTUAL = {"d": 64, "mb": 1}
REAL = {"d": 256, "seq": 128, "mb": 2, "layers": 4, "heads": 4, "dtype": "float32"}
_FLOAT = 4  # bytes


def tasks(plans: dict[str, Plan], ask: PipelineOptions) -> list[workers.Task]:
    """Return what workers are told to do, one task per plan.

    Raises InputError for what cannot be recorded.
    """
    return [_task(name, plan, ask) for name, plan in plans.items()]


def record(
    plans: dict[str, Plan], ask: PipelineOptions, folder: Path, command: str
) -> list[tuple[Path, dict[str, Any]]]:
    """Record plans of one number of ranks; return the files, with a summary of each."""
    machine.require_torch()
    writable(folder)
    some = tasks(plans, ask)
    counts = {len(plan) for plan in plans.values()}
    if len(counts) != 1:
        raise InputError(f"plans of {sorted(counts)} ranks are recorded one after the other")
    if ask.fifo and not ask.virtual:
        raise InputError("--fifo is for --virtual stages; real ones would starve gloo's threads")
    folder.mkdir(parents=True, exist_ok=True)
    (ranks,) = counts
    found, facts = machine.noted(
        command, lambda: workers.run(some, ranks, ask.timeout, folder, ask.device, ask.fifo)
    )
    out = []
    for task, results, plan in zip(some, found, plans.values(), strict=True):
        content = pipeline_file.content(task, results, plan, facts)
        path = folder / f"{task['file']}.json.gz"
        with replacing(path) as temporary:
            temporary.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        out.append((path, content["otherData"]))
    return out


def _task(name: str, plan: Plan, ask: PipelineOptions) -> workers.Task:
    owner = schedules.stage_rank(plan)
    schedules.require_legal(plan)
    microbatches = 1 + max(step.microbatch for steps in schedules.flat(plan) for step in steps)
    known = TORCH_NAMES.get(name)
    if ask.runtime not in ("csv", "class"):
        raise InputError(f"--runtime is csv or class, not {ask.runtime!r}")
    if ask.runtime == "class" and not known:
        raise InputError(f"torch has no class for {name}; leave out --runtime class")
    row = VIRTUAL["d"] * _FLOAT
    if ask.virtual and (ask.message < row or ask.message % row):
        raise InputError(f"a message is a multiple of {row} bytes, not {ask.message}")
    sizes = VIRTUAL | {"seq": ask.message // row} if ask.virtual else REAL | (ask.sizes or {})
    stages = len(owner)
    shape = f"P{len(plan)}_M{microbatches}"
    kind = "virtual" if ask.virtual else "real"
    by = "_class" if ask.runtime == "class" else ""
    return {
        "task": "pipeline_run", "plan": name, "schedule": known or name,
        "csv": schedule_csv.text(plan),
        "file": f"{kind}_{name}{by}_{shape}", "world": len(plan), "M": microbatches,
        "stages": stages, "v": stages // len(plan), "virtual": ask.virtual, **sizes,
        "warm": ask.warm, "steps": ask.steps, "keep": ask.keep or ask.steps,
        "runtime": ask.runtime, "overlap": ask.overlap, "rt": int(ask.fifo), "seed": ask.seed,
        "profile": ask.profile,
    }  # fmt: skip


def spread(step_ms: Sequence[float]) -> dict[str, float]:
    """Return median, extremes and coefficient of variation of the steps.

    >>> spread([10.0, 12.0, 11.0])["cv"]
    0.0909
    """
    import numpy as np

    times = np.array(step_ms)
    deviation = float(times.std(ddof=1)) if len(times) > 1 else 0.0
    return {
        "median_ms": round(float(np.median(times)), 3),
        "min_ms": round(float(times.min()), 3),
        "max_ms": round(float(times.max()), 3),
        "cv": round(deviation / float(times.mean()), 4),
    }
