"""Measures what issuing each class of op costs the host, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from traces.record.host_modules import OF_BACKWARD, Case, cases, layer, operators
from traces.record.sweep_run import name
from traces.record.sweep_time import synchronize
from traces.record.workers import Here, Task

IN_A_ROW = 16  # of a case, whose backward is started once
REPEATS = 4  # together at most as many launches as the queue of a stream holds
ROUNDS = 9


def work(task: Task, here: Here) -> dict[str, Any]:
    """Return seconds by class, forward and backward, and how many operators torch dispatched."""
    import torch

    one = torch.zeros(1, device=here.device, dtype=torch.bfloat16)
    launch = issued(here, lambda: [one.add_(1.0) for _ in range(IN_A_ROW)])
    rows: dict[str, Any] = {"launch": launch / IN_A_ROW}
    counts = {}
    for case in cases(here):
        rows[case.kind] = passes(here, case)
        counts[case.kind] = operators(case)
    rows["optimizer"] = [_optimizer(here)] * 2
    about = {"device": here.device, "gpu": name(here), "operators": counts}
    return {**about, "rows": rows, "transfers": _transfers(here)}


def passes(here: Here, case: Case) -> list[float]:
    """Return the seconds of the host for a run of a case, and for each kernel of its backward.

    Runs with and without the backward take turns, so that both see the same state of the processor.
    """
    import torch

    gradients = [torch.ones_like(out) for out in case.outputs(IN_A_ROW)]

    def forward() -> object:
        return case.outputs(IN_A_ROW)

    def both() -> object:
        return torch.autograd.backward(case.outputs(IN_A_ROW), gradients)

    turns = [(once(here, forward), once(here, both)) for _ in range(ROUNDS)]
    alone = median(first for first, _ in turns)
    behind = max(median(second - first for first, second in turns), 0.0)
    return [alone / IN_A_ROW, behind / (IN_A_ROW * OF_BACKWARD.get(case.kind, 1))]


def issued(here: Here, run: Callable[[], object]) -> float:
    """Return the median seconds of the processor in which the host issues a run."""
    return median(once(here, run) for _ in range(ROUNDS))


def once(here: Here, run: Callable[[], object]) -> float:
    """Return the seconds of the processor in which the host issues a run, the mean of a few.

    While others have the processor they do not count, and the host does not wait for the device.
    """
    run()
    synchronize(here)
    begin = time.process_time()
    for _ in range(REPEATS):
        run()
    seconds = (time.process_time() - begin) / REPEATS
    synchronize(here)
    return seconds


def _optimizer(here: Here) -> float:
    """Return the seconds of a step of AdamW over the weights of one layer."""
    import torch

    module = layer(here)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return issued(here, torch.optim.AdamW(module.parameters()).step)


def _transfers(here: Here) -> dict[str, float]:
    """Return the seconds of posting a collective, and of a copy; a message costs a collective's."""
    import torch
    import torch.distributed as dist

    one, other = (torch.zeros(8, device=here.device) for _ in range(2))
    collective = issued(here, lambda: dist.all_reduce(one, async_op=True))
    copy = issued(here, lambda: other.copy_(one, non_blocking=True))
    return {"collective": collective, "message": collective, "copy": copy}
