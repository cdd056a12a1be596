"""Measures what issuing each class of op costs the host, on one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    """Return the seconds of the host for a run of a case, and for each kernel of its backward."""
    import torch

    gradients = [torch.ones_like(out) for out in case.outputs(IN_A_ROW)]
    forward = issued(here, lambda: case.outputs(IN_A_ROW))
    both = issued(here, lambda: torch.autograd.backward(case.outputs(IN_A_ROW), gradients))
    kernels = IN_A_ROW * OF_BACKWARD.get(case.kind, 1)
    return [forward / IN_A_ROW, max(both - forward, 0.0) / kernels]


def issued(here: Here, run: Callable[[], object]) -> float:
    """Return the median seconds of the processor in which the host issues a run.

    Other processes do not lengthen them, and the host does not wait for the device.
    """
    times = []
    for _ in range(ROUNDS):
        run()
        synchronize(here)
        begin = time.process_time()
        for _ in range(REPEATS):
            run()
        times.append((time.process_time() - begin) / REPEATS)
        synchronize(here)
    return sorted(times)[ROUNDS // 2]


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
