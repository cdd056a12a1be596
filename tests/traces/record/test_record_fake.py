"""Workloads of large jobs by torch's fake process group: as our graphs, and how ours differ."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.engine import simulate
from sim.graph import Fixed, Graph
from sim.machine.hardware import ideal
from sim.runs import run as runs
from traces.record import fake, fake_graph

RECIPE = """
cluster = { topology = "dgx_h100", gpus = 64 }
parallelism = { tp = 8, sp = true, fsdp = { kind = "fsdp2" } }
training = { micro_batch = 2, global_batch = 16 }
[model]
name = "small llama"
layers = 2
hidden = 64
heads = 8
kv_heads = 8
ffn = 128
gated = true
vocab = 1024
tied = false
norm = "rms"
activation = "silu"
bias = false
position = "rope"
dropout = 0.0
sequence = 32
"""


def product(phase: str) -> dict[str, Any]:
    return {"op": "mm", "phase": phase, "kind": "gemm", "flops": 2.0, "bytes": 3, "dtype": "bf16",
            "shape": [1, 1, 1, 1]}  # fmt: skip


def collective(phase: str, name: str, size: int, *ranks: int) -> dict[str, Any]:
    return {"op": name, "phase": phase, "collective": name, "bytes": size, "ranks": [*ranks]}


# two layers of which rank 0 of 4 runs its half: (0, 1) share the products, (0, 2) the parameters
STEP = [
    collective("F", "all_gather", 10, 0, 2),
    product("F"),
    collective("F", "all_reduce", 7, 0, 1),
    collective("F", "all_gather", 11, 0, 2),
    product("F"),
    collective("B", "all_gather", 12, 0, 2),
    collective("B", "all_gather", 13, 0, 2),
    product("B"),
    collective("B", "reduce_scatter", 14, 0, 2),
    product("B"),
    collective("B", "reduce_scatter", 15, 0, 2),
    collective("O", "all_reduce", 4, 0, 1, 2, 3),
]


def test_every_rank_does_what_the_recorded_one_did_in_its_own_groups() -> None:
    graph = fake_graph.graph(STEP, world=4, tp=2)
    assert fake.rows_of(graph, 0) == fake.rows(STEP)
    groups = {ranks for *_, ranks in fake.rows_of(graph, 3)}
    assert groups == {(2, 3), (1, 3), (0, 1, 2, 3)}
    members = Counter(graph.part.tolist())
    assert Counter(members.values()) == {2: 2 * 7, 4: 1}  # two groups of each of 7, and the last


def test_products_wait_for_the_parameters_that_they_need() -> None:
    """A gather of the backward may last until the next unit begins; all else is in order."""
    graph = fake_graph.graph(STEP, world=4, tp=2)
    mine = [i for i in range(len(graph)) if graph.rank[i] == 0]
    at = {i: k for k, i in enumerate(mine)}
    waits = {k: sorted(at[int(j)] for j in graph.waits(i)) for i, k in at.items()}
    assert waits == {
        0: [], 1: [0], 2: [1], 3: [], 4: [2, 3], 5: [], 6: [], 7: [4, 5], 8: [7],
        9: [6, 7], 10: [9], 11: [9],
    }  # fmt: skip


def test_the_graph_runs() -> None:
    graph = fake_graph.graph(STEP, world=4, tp=2)
    fixed = fixed_works(graph)
    assert simulate(fixed, ideal(fixed)).seconds == 4 * 5.0


def fixed_works(graph: Graph) -> Graph:
    """The same with products of 5 s, and collectives of none, as the ideal machine has."""
    works = tuple(Fixed(5.0) if getattr(w, "flops", 0) else w for w in graph.works)
    return Graph(**{**vars(graph), "works": works})


def test_what_only_one_side_sends_has_its_reason(recipe: Path) -> None:
    ran = runs.run(recipe)
    ours = fake.rows_of(ran.timeline.graph)
    assert fake.differences(ran.job, ours, ours) == []
    (odd,) = fake.differences(ran.job, ours, ours + Counter({("broadcast", 8.0, (0, 1)): 2}))
    assert (odd.reason, odd.ours, odd.torchs.total()) == ("", Counter(), 2)
    tp = tuple(range(8))
    torchs = ours - Counter({("all_gather", 8192.0, tp): 5})  # of 2 x 32 tokens x 64 x 2 bytes
    (again,) = fake.differences(ran.job, ours, torchs)
    assert again.reason.startswith("Megatron's sequence parallelism")


@pytest.mark.parametrize(
    ("key", "value", "needs"),
    [
        ("parallelism.sp", False, "sp = true beside tp"),
        ("model.gated", False, "a gated MLP"),
        ("training.recompute", "full", 'recompute = "none"'),
        ("model.tied", True, "tied = false"),
    ],
)
def test_other_jobs_are_refused(recipe: Path, key: str, value: object, needs: str) -> None:
    ran = runs.run(recipe, {key: value})
    with pytest.raises(ValueError, match=needs):
        fake.task(ran.job)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_sends_what_we_say_at_world_size_64(
    traincast: Callable[..., tuple[int, str, str]], recipe: Path, tmp_path: Path
) -> None:
    """Count, bytes and groups of every collective, but for three that are explained."""
    out = tmp_path / "collectives.json"
    code, said, error = traincast("record", "fake", recipe, "--out", out, "--json")
    assert (code, error) == (0, "")
    found = json.loads(said)
    assert found["unexplained"] == 0
    assert len(found["differences"]) == 3
    content = json.loads(out.read_text())
    events = content["events"]
    layer = (4 * 64 * 64 + 3 * 64 * 128) // 8 + 2 * 64  # a rank's parameters, norms whole
    ends = 2 * 1024 * 64 // 8 + 64
    fsdp = tuple(range(0, 64, 8))
    torchs = fake.rows(events)
    assert torchs["all_gather", 2.0 * layer, fsdp] == 4  # two layers, forward and backward
    assert torchs["all_gather", 2.0 * ends, fsdp] == 1
    assert torchs["reduce_scatter", 4.0 * layer, fsdp] == 2
    assert torchs["reduce_scatter", 4.0 * ends, fsdp] == 1
    flops = sum(event["flops"] for event in events if event.get("kind") == "gemm")
    assert flops == 6 * 64 * (2 * (4 * 64 * 64 + 3 * 64 * 128) + 1024 * 64) / 8
    graph = fake_graph.graph(events, 64, 8)
    assert fake.rows_of(graph, 13).total() == torchs.total()
