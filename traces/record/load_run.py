"""Measures one case under load on one rank; all ranks begin together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traces.record import load_mixture, load_overlap, load_sustain
from traces.record.load_tape import Tape
from traces.record.nvml import Gauge, UnreadableError
from traces.record.plan import guarded
from traces.record.sweep_run import name, tidy
from traces.record.workers import Here, Task

PARTS: dict[str, Callable[[Tape, Any, float], dict[str, Any]]] = {
    "sustain": load_sustain.measure,
    "mixture": load_mixture.measure,
    "overlap": load_overlap.measure,
}
ON_CPU = 0.1  # share of a case's seconds that is enough to see a CPU do it


def work(task: Task, here: Here) -> dict[str, Any]:
    """Return the row of a case, or why there is none; ``unread`` is why NVML told nothing."""
    seconds = task["seconds"] * (ON_CPU if here.device == "cpu" else 1.0)
    out: dict[str, Any] = {"device": here.device, "gpu": name(here)}
    try:
        gauge: Gauge | None = Gauge(here.device)
    except UnreadableError as error:
        gauge, out["unread"] = None, str(error)
    with guarded(out, "skipped"):
        row = PARTS[task["part"]](Tape(here, gauge), task["facts"], seconds)
        limit = {"limit_w": gauge.limit} if gauge else {}
        out["row"] = {"case": task["name"], "rank": here.rank, **limit, **task["facts"], **row}
    tidy(here)
    return out
