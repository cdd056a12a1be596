"""Measures kernels and transfers on one rank: the parts of a sweep, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from traces.record import sweep_block, sweep_kernels, sweep_transfers
from traces.record.plan import Row, guarded, measured
from traces.record.workers import Here, Task

Rows = Iterator[dict[str, Any]]

PARTS: dict[str, Callable[[Here], Iterator[Row]]] = {
    "p2p": sweep_transfers.p2p,
    "all_reduce": sweep_transfers.all_reduce,
    "memory": sweep_transfers.memory,
    "attention": sweep_kernels.attention,
    "elementwise": sweep_kernels.elementwise,
    "gemm": sweep_kernels.gemm,
}
"""Parts that are rows of one work each."""
OTHERS: dict[str, Callable[[Here, float], Rows]] = {
    "launch": sweep_transfers.launch,
    "block": sweep_block.block,
}
"""Parts whose rows hold differences of several works."""


def work(task: Task, here: Here) -> dict[str, Any]:
    """Return rows of each part of the sweep, within its seconds.

    A part that fails, such as when memory runs out, keeps its rows so far; ``skipped`` says why.
    """
    out: dict[str, Any] = {"device": here.device, "gpu": name(here)}
    skipped: dict[str, str] = {}
    for part in task["parts"]:
        until = time.monotonic() + task["seconds"] / len(task["parts"])
        rows = out[part] = list[dict[str, Any]]()
        with guarded(skipped, part):
            own = OTHERS[part](here, until) if part in OTHERS else None
            rows.extend(own or measured(here, PARTS[part](here), until))
        tidy(here)
    return {**out, "skipped": skipped} if skipped else out


def name(here: Here) -> str | None:
    """Return the driver's name of the GPU."""
    if here.device == "cpu":
        return None
    import torch

    return str(torch.cuda.get_device_name(here.device))


def tidy(here: Here) -> None:
    """Give back what a part left, as the next may need all of the memory."""
    if here.device != "cpu":
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
