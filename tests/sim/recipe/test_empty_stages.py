"""Stages without layers: the embedding or the head alone, in any schedule and strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.graph import Compute
from sim.recipe import recipe_file
from sim.runs.run import Result, run

HIDDEN, VOCAB, TP = 256, 5120, 2
RECIPE = f"""
[model]
layers = 6
hidden = {HIDDEN}
heads = 8
ffn = 1024
vocab = {VOCAB}
vocab_padding = 1
sequence = 256
position = "rope"
norm = "rms"
dropout = 0.0
[cluster]
topology = "dgx_h100"
gpus = 16
[parallelism]
tp = {TP}
pp = 4
[training]
micro_batch = 1
global_batch = 16
"""


def kernels(result: Result) -> dict[str, tuple[int, float]]:
    """Kernels by name: how often they run, and FLOPs, on all ranks."""
    graph, out = result.timeline.graph, dict[str, tuple[int, float]]()
    for k in range(len(graph)):
        op = graph.op(k)
        if isinstance(op.work, Compute) and op.phase != "O":
            count, flops = out.get(op.name, (0, 0.0))
            out[op.name] = (count + 1, flops + op.work.flops)
    return out


WAYS = [
    {},
    {"schedule.name": "zb_h1"},
    {"parallelism.zero": 3},
    {"parallelism.fsdp": {"kind": "fsdp2"}},
    {"training.fp8": {"recipe": "delayed"}},
    {"parallelism.sp": True, "parallelism.tp_overlap": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_same_kernels_run_wherever_layers_are(recipe: Path, way: dict[str, object]) -> None:
    """Only where they run differs, and a marker of no length where no gradient of inputs is."""
    if "training.fp8" in way or "parallelism.zero" in way or "parallelism.fsdp" in way:
        way = way | {"parallelism.tp": 1}  # casts and maxima come once per stage
    found = [
        kernels(run(recipe, {**way, "schedule.layers_per_stage": split}))
        for split in ([1, 2, 2, 1], [0, 3, 3, 0])
    ]
    names = [name for name in found[0] if "amax" not in name]
    assert {name: found[1][name] for name in names} == {name: found[0][name] for name in names}


def test_ends_alone_hold_only_what_is_theirs(recipe: Path) -> None:
    """By closed form, 2 bytes a weight and 4 a gradient: V h / t, and the norm h with the head."""
    result = run(recipe, {"schedule.layers_per_stage": [0, 3, 3, 0]})
    matrix = VOCAB * HIDDEN // TP
    held = [one["by_category"] for one in result.summary["memory"]]
    assert held[0]["weights"] == 2 * matrix
    assert held[-1]["weights"] == 2 * (matrix + HIDDEN)
    assert held[0]["gradients"] == 4 * matrix
    ops = result.timeline.to_pandas()
    last = ops[(ops["rank"] == ops["rank"].max()) & ops["phase"].isin(["F"])]
    computed = {name for name in last["name"].unique() if "recv" not in name and "send" not in name}
    assert computed >= {"final_norm", "head", "loss_max"}
    assert not {name for name in computed if name.startswith(("attention", "mlp", "qkv"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["interleaved_1f1b", "zb_v", "v_half", "dualpipe_v", "looped_bfs", "gpipe", "zb_1p"]
)
def test_every_kind_of_schedule_runs_them(recipe: Path, name: str) -> None:
    """Two stages per rank, the ends of both kinds empty; time passes in every one."""
    two = name not in ("gpipe", "zb_1p")
    split = [0, 1, 1, 1, 1, 1, 1, 0] if two else [0, 3, 3, 0]
    chunks = {"schedule.chunks": 2} if name in ("interleaved_1f1b", "looped_bfs") else {}
    own = {"schedule.name": name, **chunks, "schedule.layers_per_stage": split}
    result = run(recipe, own)
    ops = result.timeline.to_pandas()
    assert sorted(ops.loc[ops["phase"] == "F", "stage"].unique()) == [*range(len(split))]
    assert result.summary["step_time_s"] > 0


@pytest.mark.parametrize(("split", "stage"), [([2, 0, 2, 2], 1), ([0, 3, 0, 3], 2)])
def test_a_stage_with_nothing_in_it_is_refused(recipe: Path, split: list[int], stage: int) -> None:
    sentence = rf"layers_per_stage\[{stage}\] = 0 is a stage with nothing in it"
    with pytest.raises(ValueError, match=sentence):
        recipe_file.load(recipe, {"schedule.layers_per_stage": split})


def test_copies_of_whole_stages_to_the_host_have_none_of_an_empty_one(recipe: Path) -> None:
    own = {"training.offload": {"activations": 0.5, "by": "stage"}}
    result = run(recipe, {**own, "schedule.layers_per_stage": [0, 2, 2, 2]})
    ops = result.timeline.to_pandas()
    assert set(ops.loc[ops["name"] == "offload", "stage"]) == {1, 2}


def test_a_loss_alone_on_the_last_stage(shared: Path) -> None:
    """Megatron's layout Et*3|t*3|t*2|L: the last stage is norm, head and loss."""
    result = run(shared.parent / "cases/reports/13-empty-stages/recipe.toml")
    assert list(result.recipe.layers_per_stage) == [3, 3, 2, 0]
    held = [one["by_category"]["weights"] for one in result.summary["memory"]]
    vocab = -(-50257 // 128) * 128
    assert held[-1] == pytest.approx(2 * vocab * 1024, rel=1e-3)
