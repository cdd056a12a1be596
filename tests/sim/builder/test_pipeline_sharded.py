"""FSDP2 and DDP in a pipeline: gradients wait for the last microbatch, as torch's stages have it.

The counts of collectives are those of torch's own pipeline runtime over a group that moves nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from sim import run
from sim.builder.job import Job
from sim.builder.training_step import training_step
from sim.graph import Graph
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.strategies.sharded import kinds

Make = Callable[..., Job]
M = 5
ORDERS = ["one_f_one_b", "gpipe"]

IN_TORCH = """
import json, warnings
from collections import Counter
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

warnings.simplefilter("ignore")

class Count(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found[str(func)] += str(func).startswith("c10d")
        return func(*args, **(kwargs or {}))

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
alone, mesh, out = dist.new_group([0]), init_device_mesh("cpu", (2,)), []
for reshard in (True, False):
    for order, m in ((Schedule1F1B, 1), (Schedule1F1B, 5), (ScheduleGPipe, 5)):
        layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
        for part in (*layers, layers):
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
        stage = PipelineStage(layers, 0, 1, torch.device("cpu"), group=alone)
        pipeline = order(stage, m, loss_fn=lambda o, t: (o - t).square().sum())
        for _ in range(2):  # the first step also finds shapes
            found, x = Counter(), torch.zeros(m, 8)
            with Count():
                pipeline.step(x, target=x)
        out.append([found["c10d._allgather_base_.default"] / 3,
                    found["c10d._reduce_scatter_base_.default"] / 3])
print(json.dumps(out))
"""


def counts(graph: Graph, rank: int, layer: int) -> list[int]:
    """Gathers and reductions of a layer's unit on one rank."""
    mine = (graph.rank == rank) & (graph.layer == layer)
    gathers = mine & (graph.name == graph.names.index("param_all_gather"))
    layers = len(np.unique(graph.layer[(graph.rank == rank) & (graph.layer >= 0)]))
    all_of_it = (graph.rank == rank) & (graph.name == graph.names.index("grad_reduce_scatter"))
    units = layers + 1  # and what is at the stage's end
    assert all_of_it.sum() % units == 0
    return [int(gathers.sum()), int(all_of_it.sum()) // units]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_s_pipeline_gathers_once_more_than_microbatches_and_reduces_once() -> None:
    """Per unit: with resharding after the forward m + 1 gathers, else one; one reduction."""
    command = [sys.executable, "-c", IN_TORCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == [[1 + 1, 1], [M + 1, 1], [M + 1, 1], *[[1, 1]] * 3]


@pytest.mark.parametrize("schedule", ORDERS)
@pytest.mark.parametrize(("reshard", "gathers"), [(True, M + 1), (False, 1)])
def test_our_pipeline_gathers_and_reduces_as_often(
    small_job: Make, schedule: str, reshard: bool, gathers: int
) -> None:
    job = {"pp": 2, "dp": 4, "microbatches": M, "schedule": schedule, "accumulate": True}
    graph = training_step(small_job(**job, sharding=kinds.fsdp2(4, reshard)))
    for rank, layer in ((0, 1), (4, 6)):
        assert counts(graph, rank, layer) == [gathers, 1]


@pytest.mark.parametrize("schedule", ["zb_h1", "interleaved_1f1b", "zb_v"])
def test_orders_of_halves_and_chunks_gather_as_often(small_job: Make, schedule: str) -> None:
    """Whatever the order, each forward frees what is there and what comes behind one gathers."""
    chunks = {"chunks": 2} if schedule == "interleaved_1f1b" else {}
    layers = {"layers_per_stage": (2, 2, 2, 2)} if schedule == "zb_v" else {}
    job = {"pp": 2, "dp": 4, "microbatches": 4, "schedule": schedule, "accumulate": True}
    graph = training_step(small_job(**job, **chunks, **layers, sharding=kinds.fsdp2(4)))
    mine = (graph.rank == 0) & (graph.layer == 1)
    assert (mine & (graph.name == graph.names.index("param_all_gather"))).sum() == 4 + 1


RECIPE: dict[str, Any] = {
    "model": {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 4096, "sequence": 512}
    | {"tied": False, "position": "rope"},
    "cluster": {"topology": "dgx_h100", "gpus": 8},
    "parallelism": {"pp": 2, "fsdp": {"kind": "fsdp2", "reshard_after_forward": False}},
    "training": {"global_batch": 32},
}


def changed(**split: object) -> dict[str, Any]:
    return {**RECIPE, "parallelism": {"pp": 2, **split}}


def test_fsdp2_in_a_pipeline_accumulates_unless_told_not_to() -> None:
    """4 bytes for each parameter of the stage; told so, or under FSDP1, every backward reduces."""
    fsdp = {"kind": "fsdp2", "reshard_after_forward": False}
    stage = recipe_file.parse(RECIPE)
    assert stage.parallelism.accumulate is True
    whole = run(recipe_file.parse(RECIPE)).summary["memory"][0]["by_category"]
    told = run(recipe_file.parse(changed(fsdp=fsdp, accumulate=False))).summary["memory"][0][
        "by_category"
    ]
    assert whole["gradients"] == 4 * told["gradients"]
    held = 4 * (12 * 1024**2 + 13 * 1024) + 4096 * 1024  # layers, and the embedding
    assert whole["gradients"] == 4 * held
    assert recipe_file.parse(changed(fsdp={"kind": "fsdp1"})).parallelism.accumulate is False
    assert recipe_file.parse(changed(zero=3)).parallelism.accumulate is False
    alone = {**RECIPE, "parallelism": {"fsdp": fsdp}}
    assert recipe_file.parse(alone).parallelism.accumulate is False


@pytest.mark.slow
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("name", ORDERS)
def test_check_knows_what_stays_gathered(reshard: bool, name: str) -> None:
    fsdp = {"kind": "fsdp2", "reshard_after_forward": reshard}
    data = {**changed(fsdp=fsdp), "schedule": {"name": name}}
    ran = run(recipe_file.parse(data)).summary["memory"]
    for found, said in zip(check(recipe_file.parse(data))["memory"], ran, strict=True):
        assert found["peak_bytes"] == pytest.approx(said["peak_bytes"], rel=0.01)


def test_ddp_in_a_pipeline_reduces_its_buckets_once_a_step(small_job: Make) -> None:
    """As torch's no_sync has it: as many reductions with five microbatches as with one."""
    found = []
    for m in (1, M):
        graph = training_step(small_job(pp=2, dp=4, microbatches=m))
        sums = graph.name == graph.names.index("grad_all_reduce")
        found.append(int((sums & (graph.rank == 0)).sum()))
    assert found[0] == found[1] > 1
