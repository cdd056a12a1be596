"""Records steps of DDP, FSDP2, TP, ZeRO-1, ring attention and experts, with profiler traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.files import replacing, writable
from traces.record import machine, workers
from traces.record.pipelines import spread

MODES = ("ddp", "fsdp2", "tp", "zero1", "ring", "moe")
SIZES = {"d": 256, "heads": 4, "seq": 128, "mb": 4, "blocks": 8}


def record(
    modes: Sequence[str],
    folder: Path,
    command: str,
    ranks: int = 2,
    steps: int = 10,
    seed: int = 0,
    timeout: float = 600.0,
    sizes: dict[str, int] | None = None,
) -> list[tuple[Path, dict[str, Any]]]:
    """Write ``MODE_rankR.json.gz`` and ``MODE_summary.json`` of each mode; paths of the latter.

    Raises ValueError, in one sentence, for a mode that there is not, or a worker that failed.
    """
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ValueError(f"record parallel knows {', '.join(MODES)}, and not {unknown[0]!r}")
    machine.require_torch()
    writable(folder).mkdir(parents=True, exist_ok=True)
    some = {**SIZES, **(sizes or {})}
    tasks = [
        {"task": "parallel_run", "mode": mode, "warm": 2, "steps": steps, "seed": seed, **some}
        for mode in modes
    ]
    before = machine.facts()
    found = workers.run(tasks, ranks, timeout, folder)
    facts = {"command": command, "machine": before | {"load_after": machine.load()}}
    out = []
    for task, each in zip(tasks, found, strict=True):
        content: dict[str, Any] = {
            "mode": task["mode"],
            "ranks": each,
            "step_ms_all": step_ms(each),
            "config": task,
            **facts,
        }
        path = folder / f"{task['mode']}_summary.json"
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content))
        out.append((path, {**content, **spread(content["step_ms_all"])}))
    return out


def step_ms(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """Of each step: from when the last rank began to when the last one was done.

    >>> step_ms([{"steps": [[0, 0, 1, 2, 9_000_000]]}, {"steps": [[0, 4_000_000, 5, 6, 7]]}])
    [5.0]
    """
    by_step = zip(*(rank["steps"] for rank in ranks), strict=True)
    return [(max(s[-1] for s in step) - max(s[1] for s in step)) / 1e6 for step in by_step]
