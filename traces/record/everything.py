"""All that a machine can show, in one go and within a budget of seconds, for what it has.

Each section may fail without harm to the others; the result file is written again after each, so
it is there whatever happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import schedules
from sim.files import replacing, writable
from traces.record import machine, parallel, pipelines, streams, sweep

VIRTUAL: dict[str, pipelines.Seconds] = {"F": 0.010, "I": 0.010, "W": 0.010}
PLANS = ("gpipe", "one_f_one_b", "interleaved_1f1b", "interleaved_zero_bubble", "zb_v",
         "dualpipe_v", "v_half")  # fmt: skip
GPU_BLOCK = {"d": 2048, "seq": 2048, "mb": 1, "layers": 1, "heads": 16, "dtype": "bfloat16"}
CPU_BLOCK = {"d": 64, "seq": 32, "mb": 1, "layers": 1}
CPU_MODEL = {"d": 64, "blocks": 2}
LEAST = 15.0  # seconds: less is not enough to start a worker


class Section(NamedTuple):
    """One part: its share of what is left of the budget, and what makes it."""

    name: str
    share: float
    make: Callable[[float], Any]  # given its seconds


def record(folder: Path, budget: float, command: str, gpus: int | None = None) -> Path:
    """Record every section; the path of the result, which says what was skipped and why."""
    deadline = time.monotonic() + budget
    machine.require_torch()
    writable(folder).mkdir(parents=True, exist_ok=True)
    found = count_gpus() if gpus is None else gpus
    path = folder / "result.json"
    result: dict[str, Any] = {
        "command": command, "machine": machine.facts(), "gpus": found, "budget_s": budget,
        "seed": 0, "sections": {}, "seconds": {}, "skipped": [],
    }  # fmt: skip
    for section in sections(folder, command, found):
        begin = time.monotonic()
        seconds = (deadline - begin) * section.share
        try:
            if seconds < LEAST:
                raise ValueError(f"{seconds:.0f} s of the budget are left for it")
            made = section.make(seconds)
            if isinstance(made, dict) and "skipped" in made:
                result["skipped"].append({"section": section.name, "why": made.pop("skipped")})
            result["sections"][section.name] = made
        except Exception as error:  # the other sections are worth having
            why = " ".join(f"{type(error).__name__}: {error}".split())
            result["skipped"].append({"section": section.name, "why": why})
        result["seconds"][section.name] = round(time.monotonic() - begin, 1)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(result, indent=1))
    return path


def sections(folder: Path, command: str, gpus: int) -> Sequence[Section]:
    """What there is to record, the most valuable first; shares are of what is then left."""
    plans = {name: schedules.load(name)(4, 8) for name in PLANS if name != "v_half"}
    if gpus:
        plans["v_half"] = schedules.load("v_half")(4, 8)
    virtual = {"F": 0.004, "I": 0.003, "W": 0.002}  # spin kernels keep time to the microsecond
    wide = max(2, gpus)

    def pipeline(names: Sequence[str], ask: pipelines.Ask, ranks: int) -> list[Any]:
        some = {name: schedules.load(name)(ranks, 8) for name in names}
        made = pipelines.record(some, ask, folder, command)
        return [
            {"file": path.name, "noise": facts["noise"], "device": facts["device"]}
            | pipelines.spread(facts["step_ms_all"])
            for path, facts in made
        ]

    block = GPU_BLOCK if gpus else CPU_BLOCK
    few = 10 if gpus else 3  # steps that really compute
    return [
        Section("kernels", 0.25, lambda s: sweep.record(sweep.PARTS[2:], 1, s / 2, s)),
        Section("streams", 0.3, lambda s: streams.record(plans, virtual, timeout=s)),
        Section("stage", 0.25, lambda s: pipeline(
            ("one_f_one_b", "zb_h1"), pipelines.Ask(steps=few, sizes=block, timeout=s), 1)),
        Section("transfers", 0.3, lambda s: sweep.record(sweep.BETWEEN, wide, s / 2, s)),
        Section("pipelines", 0.6, lambda s: pipeline(
            PLANS if s > 90 else PLANS[:2],
            pipelines.Ask(VIRTUAL, fifo=gpus < 4, keep=3, timeout=s), 4)),
        Section("parallel", 1.0, lambda s: [
            {"file": path.name, **one}
            for path, one in parallel.record(
                ("ddp", "fsdp2", "tp"), folder, command, parallel.Ask(
                    wide, few, few, timeout=s, sizes={} if gpus else CPU_MODEL))]),
    ]  # fmt: skip


def count_gpus() -> int:
    """GPUs that torch can use, asked in a process of its own."""
    import subprocess
    import sys

    code = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0
