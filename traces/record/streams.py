"""Records what one GPU can show: kinds of work that slow each other, and pipelines on streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedules import Plan
from traces import schedule_csv
from traces.record import machine, workers


def record(
    plans: Mapping[str, Plan],
    virtual: Mapping[str, float],
    steps: int = 10,
    warm: int = 2,
    gemm: int = 8192,
    message: int = 1 << 20,
    timeout: float = 300.0,
) -> dict[str, Any]:
    """The overlap matrix, and every step of each plan; without a GPU, ``skipped`` says so.

    ``virtual`` has the seconds of F, I and W; ``gemm`` is the width of the product, ``message`` the
    bytes that are copied between ranks.
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
    }
    found: dict[str, Any] = workers.run([task], 1, timeout)[0][0]
    return found
