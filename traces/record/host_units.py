"""Measures what FSDP2's hooks cost the host for each unit, over torch's fake process group."""

from __future__ import annotations

import time
from typing import Any

from traces.record.host_run import issued
from traces.record.parallel_models import blocks
from traces.record.workers import Here, Task

SIZES = {"d": 32, "ffn": 64, "heads": 4, "blocks": 4}


def work(task: Task, here: Here) -> dict[str, float]:
    """Return the seconds of gathering a unit in the forward, and of reducing its gradients.

    They are what a sharded step takes longer than one that is not. The backward gathers a unit
    again, which is taken to cost as much as in the forward.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    plain, sharded = blocks(SIZES), blocks(SIZES)
    mesh = init_device_mesh("cpu", (here.ranks,))
    for block in sharded:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    x = torch.rand(1, 8, SIZES["d"])
    (forward, backward), (more, longer) = (_passes(here, model, x) for model in (plain, sharded))
    gather = max(more - forward, 0.0) / SIZES["blocks"]
    return {
        "gather": gather,
        "reduce": max((longer - backward) / SIZES["blocks"] - gather, 0.0),
    }


def _passes(here: Here, model: Any, x: Any) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward of all units, by whole steps.

    Sharded modules run a backward after each forward, so neither can be measured alone.
    """
    spent = [0.0, 0.0]

    def step() -> None:
        begin = time.process_time()
        out = model(x).square().mean()
        between = time.process_time()
        out.backward()
        spent[0] += between - begin
        spent[1] += time.process_time() - between

    whole = issued(here, step)
    share = spent[0] / sum(spent)
    return whole * share, whole * (1.0 - share)
