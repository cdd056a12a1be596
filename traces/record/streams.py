"""Records what one GPU can show: kinds of work that slow each other, and pipelines on streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schedules import Plan
from sim.runs.schedule_run import simulate_plan
from traces import schedule_csv
from traces.record import machine, workers

Steps = Sequence[Mapping[str, Any]]


def record(
    plans: Mapping[str, Plan],
    virtual: Mapping[str, float],
    steps: int = 10,
    warm: int = 2,
    gemm: int = 8192,
    message: int = 1 << 20,
    copy: int = 1 << 28,
    timeout: float = 300.0,
) -> dict[str, Any]:
    """Record the overlaps, and the steps of each plan beside what is predicted for them.

    ``virtual`` has the seconds of F, I and W; ``gemm`` is the width of the product, ``message`` the
    bytes that are copied between ranks, ``copy`` those of the copies beside other work. ``skipped``
    says what failed and why, or that there is no GPU.
    """
    machine.require_torch()
    task = {
        "task": "streams_run",
        "plans": {name: schedule_csv.text(plan) for name, plan in plans.items()},
        "virtual": dict(virtual),
        "steps": steps,
        "warm": warm,
        "gemm": gemm,
        "message": message,
        "copy": copy,
    }
    found: dict[str, Any] = workers.run([task], 1, timeout)[0][0]
    found["plans"] = {
        name: {**comparison(plans[name], measured, virtual), "steps": measured}
        for name, measured in found["plans"].items()
    }
    return found


def comparison(plan: Plan, steps: Steps, virtual: Mapping[str, float]) -> dict[str, Any]:
    """Return the median step, and the step predicted from the median kernels and messages.

    A whole backward is divided as ``virtual`` says.
    """
    took: dict[str, list[float]] = {}
    for step in steps:
        for name, _, begin, end in step["events"]:
            kind = name.lstrip("0123456789")[0]
            took.setdefault(kind, []).append((end - begin) / 1e9)
        for _, _, begin, end in step["messages"]:
            took.setdefault("p2p", []).append((end - begin) / 1e9)
    times = {kind: float(np.median(some)) for kind, some in took.items()}
    whole = times.pop("B", None)
    for kind in "IW":
        share = virtual[kind] / (virtual["I"] + virtual["W"])
        times.setdefault(kind, (whole or 0.0) * share)
    predicted = simulate_plan(plan, {"p2p": 0.0, **times}, pair="serial")["makespan_s"]
    measured = float(np.median([step["seconds"] for step in steps]))
    return {
        "measured_s": measured,
        "predicted_s": predicted,
        "error": predicted / measured - 1.0,
        "times_s": times,
    }
