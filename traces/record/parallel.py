"""Records steps of DDP, FSDP2, TP, ZeRO-1, ring attention and experts, and what is in them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import sim.files
from schedules.input_error import InputError
from traces.cpu_steps import distilled, source
from traces.cpu_steps.run import CpuRun
from traces.record import machine, workers
from traces.record.parallel_sizes import task_of
from traces.record.pipelines import spread

MODES = ("ddp", "ddp_hook", "fsdp2", "tp", "zero1", "ring", "moe")


class ParallelOptions(NamedTuple):
    """What to record of every mode."""

    ranks: int = 2
    steps: int = 10  # timed
    profiled: int = 10  # besides the timed ones
    seed: int = 0
    timeout: float = 600.0
    sizes: Mapping[str, int] = {}
    optimizer: str = "SGD"
    traces: bool = False  # keep the profiler's own, and a summary


def record(
    modes: Sequence[str],
    folder: Path,
    command: str,
    ask: ParallelOptions = ParallelOptions(),  # noqa: B008  (immutable)
) -> list[tuple[Path, dict[str, Any]]]:
    """Write ``MODE.json.gz`` for each mode (:mod:`traces.cpu_steps`); return paths and step times.

    With ``traces`` there are ``MODE_summary.json`` and ``MODE_rankR.json.gz`` too. Runs on GPUs
    have only those.

    Raises InputError for an unknown mode, or a worker that failed.
    """
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise InputError(f"record parallel knows {', '.join(MODES)}, not {unknown[0]!r}")
    machine.require_torch()
    tasks = [
        task_of(mode, ask.sizes, ask.optimizer, ask.ranks)
        | {"steps": ask.steps, "profiled": ask.profiled, "seed": ask.seed}
        for mode in modes
    ]
    sim.files.writable(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="traincast-record-") as name:
        raw = Path(name)
        found, facts = machine.noted(
            command, lambda: workers.run(tasks, ask.ranks, ask.timeout, raw)
        )
        return [
            _write(folder, raw, task, ranks, facts, ask)
            for task, ranks in zip(tasks, found, strict=True)
        ]


def _write(
    folder: Path,
    raw: Path,
    task: dict[str, Any],
    ranks: Sequence[dict[str, Any]],
    facts: Mapping[str, Any],
    ask: ParallelOptions,
) -> tuple[Path, dict[str, Any]]:
    """Write the files of one mode; return the path and the times of its steps."""
    mode = task["mode"]
    milliseconds = [seconds * 1e3 for seconds in source.seconds(ranks)]
    content = {
        "mode": mode, "ranks": ranks, "step_ms_all": milliseconds, "config": task, **facts
    }  # fmt: skip
    summary = raw / f"{mode}{source.ENDING}"
    summary.write_text(json.dumps(content))
    on_gpu = ranks[0]["device"] != "cpu"
    kept = [summary, *(raw / rank["trace"] for rank in ranks)] if ask.traces or on_gpu else []
    for path in kept:
        with sim.files.replacing(folder / path.name) as temporary:
            temporary.write_bytes(path.read_bytes())
    of = {"mode": mode, **spread(milliseconds)}
    if on_gpu:
        return folder / summary.name, of
    measured = source.read(summary)
    return distilled.write(folder / f"{mode}.json.gz", measured), of | _said(measured.run)


def _said(run: CpuRun) -> dict[str, Any]:
    """Return the parts of a step, means of ranks and profiled steps."""
    keys = ("math_s", "host_s", "wait_s", "moving_s", "exposed_s")
    means = {
        key: fsum(getattr(one, key) for one in run.ranks) / len(run.ranks) * 1e3 for key in keys
    }
    return {key.replace("_s", "_ms"): value for key, value in means.items()}
