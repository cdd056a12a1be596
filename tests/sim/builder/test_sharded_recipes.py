"""Recipes of ZeRO-2, ZeRO-3 and FSDP: what they mean, what is refused, and the memory they say."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.builder.job import without_plan
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import run
from sim.strategies.sharded import kinds
from sim.strategies.sharded.flow import Flow
from sim.strategies.sharded.tables import DeepSpeedTable

pytestmark = pytest.mark.slow

BASE: dict[str, Any] = {
    "model": {"preset": "llama3-8b", "layers": 4, "sequence": 2048},
    "cluster": {"topology": "dgx_h100", "gpus": 16},
    "training": {"global_batch": 64},
}


def recipe(**parallelism: Any) -> Any:
    return recipe_file.parse({**BASE, "parallelism": parallelism})


FIVE = {"kind": "fsdp1", "backward_prefetch": "none", "limit_all_gathers": False}
MEANT: list[tuple[dict[str, Any], Flow | None]] = [
    ({"zero": 2}, None),
    ({"zero": 3}, kinds.zero3(16)),
    ({"zero": 3, "deepspeed": {}}, kinds.zero3(16, DeepSpeedTable())),
    ({"fsdp": {}}, kinds.fsdp2(16)),
    ({"fsdp": {"shard": 8, "prefetch": 3, "wrap": 2}}, kinds.fsdp2(16, True, 8, 2, 3)),
    ({"fsdp": {"shard": 8, "replicate": "once"}}, replace(kinds.fsdp2(16, shard=8), once=True)),
    ({"fsdp": {"shard": 8, "replicate": "each"}}, kinds.fsdp2(16, shard=8)),
    ({"fsdp": {"reshard_after_forward": False}}, kinds.fsdp2(16, False)),
    ({"fsdp": {"reshard_after_forward": 4}}, replace(kinds.fsdp2(16), regroup=4)),
    ({"fsdp": FIVE}, kinds.fsdp1(16, backward_prefetch="none", limit_all_gathers=False)),
    ({"fsdp": {"kind": "fsdp1", "sharding": "_HYBRID_SHARD_ZERO2", "shard": 8}},
     kinds.fsdp1(16, "_HYBRID_SHARD_ZERO2", shard=8)),
    ({"fsdp": {"kind": "yafsdp", "wrap": "model"}}, kinds.yafsdp(16, wrap="model")),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sharding"), MEANT)
def test_what_a_recipe_means(keys: dict[str, Any], sharding: Flow | None) -> None:
    """And written out and read again it means the same."""
    read = recipe(**keys)
    assert without_plan(read).data.sharding == sharding
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(read))) == read


def test_buckets_of_a_recipe() -> None:
    """MB of gradients, or DeepSpeed's number of them, here of 4 bytes each."""
    table = {"reduce_bucket_size": 3e6}
    assert without_plan(recipe(zero=2, deepspeed=table)).data.bucket == 12e6
    assert without_plan(recipe(zero=2, bucket_mb=3.0)).data.bucket == 3e6


REFUSED = [
    ({"fsdp": {"king": 1}}, "unknown key parallelism.fsdp.king; did you mean parallelism.fsdp.k"),
    ({"fsdp": {"x": 1}}, "unknown key parallelism.fsdp.x; it has backward_prefetch, copy_engines"),
    ({"deepspeed": {"reduce_bucket": 1}}, "did you mean parallelism.deepspeed.reduce_bucket_size?"),
    ({"fsdp": True}, "parallelism.fsdp = true must be a table, [parallelism.fsdp]"),
    ({"fsdp": {"kind": "fsdp3"}}, "fsdp.kind = \"fsdp3\" must be 'fsdp1', 'fsdp2' or 'yafsdp'"),
    ({"fsdp": {"wrap": "layers"}}, "\"layers\" must be 'layer' or 'model' or a whole number"),
    ({"fsdp": {"wrap": 0}}, "fsdp.wrap = 0 must be 'layer' or 'model' or at least 1"),
    ({"fsdp": {"prefetch": -1}}, "parallelism.fsdp.prefetch = -1 must be at least 0"),
    ({"zero": 1, "fsdp": {}}, "zero = 1 and parallelism.fsdp are both given; leave one of them"),
    ({"zero": 2, "tp": 8, "pp": 2}, "parallelism.zero = 2 needs dp > 1"),
    ({"fsdp": {}, "tp": 8, "pp": 2}, "parallelism.fsdp needs dp > 1"),
    ({"zero": 3, "overlap_grad_reduce": False}, "zero = 3 needs overlap_grad_reduce = true"),
    ({"zero": 3, "overlap_param_gather": True}, "needs zero = 1 or 2, whose gathers it overlaps"),
    ({"zero": 1, "deepspeed": {}},
     "parallelism.deepspeed gives sizes for zero = 2 or 3; it needs one of them"),
    ({"zero": 2, "deepspeed": {"stage3_max_live_parameters": 10**9}},
     "parallelism.deepspeed.stage3_max_live_parameters needs zero = 3"),
    ({"accumulate": True}, "parallelism.accumulate = true needs zero = 2 or 3, or fsdp"),
    ({"fsdp": {"kind": "yafsdp"}, "accumulate": True}, "yafsdp makes gradients in two buffers"),
    ({"zero": 2, "first_bucket_mb": 1.0}, "first_bucket_mb needs zero = 0 or 1"),
    ({"zero": 2, "gradient_as_bucket_view": False}, "gradient_as_bucket_view = false needs zero"),
    ({"fsdp": {"sharding": "FULL_SHARD"}}, 'fsdp.sharding is a key of kind = "fsdp1"'),
    ({"fsdp": {"kind": "yafsdp", "prefetch": 1}}, 'fsdp.prefetch is a key of kind = "fsdp2"'),
    ({"fsdp": {"kind": "fsdp1", "sharding": "HYBRID_SHARD"}}, "needs shard, the ranks that share"),
    ({"fsdp": {"kind": "fsdp1", "shard": 8}}, 'shard needs sharding = "HYBRID_SHARD" in fsdp1'),
    ({"fsdp": {"shard": 3}}, "fsdp.shard = 3 does not divide parallelism.dp = 16"),
    ({"fsdp": {"replicate": "once"}}, "fsdp.replicate needs shard below dp = 16"),
    ({"fsdp": {"replicate": "twice"}}, "fsdp.replicate = \"twice\" must be 'each' or 'once'"),
    ({"fsdp": {"kind": "yafsdp", "shard": 8, "replicate": "once"}},
     'fsdp.replicate is a key of kind = "fsdp2"'),
    ({"fsdp": {"shard": 8, "replicate": "once"}, "accumulate": True},
     'replicate = "once" and accumulate = true are both given'),
    ({"fsdp": {"shard": 1}}, "fsdp.shard = 1 shares nothing; leave fsdp out"),
    ({"fsdp": {"reshard_after_forward": 3}}, "reshard_after_forward = 3 must be true, false, or"),
    ({"fsdp": {"shard": 4, "reshard_after_forward": 8}}, "a divisor of the 4 ranks that share"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "sentence"), REFUSED)
def test_what_does_not_go_together_is_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe(**keys)
    assert sentence in str(error.value)


def test_pipelines_that_are_never_flushed_refuse() -> None:
    asynchronous = {"schedule": {"name": "pipedream"}, "parallelism": {"pp": 2, "fsdp": {}}}
    with pytest.raises(ValueError, match="fsdp needs a schedule with a flush; pipedream"):
        recipe_file.parse({**BASE, **asynchronous})


@pytest.mark.parametrize(
    "keys",
    [
        {"fsdp": {}},
        {"fsdp": {"prefetch": 0}},
        {"fsdp": {"reshard_after_forward": 4}},
        {"fsdp": {"reshard_after_forward": False}},
        {"fsdp": {"kind": "fsdp1", "sharding": "HYBRID_SHARD", "shard": 8}},
        {"fsdp": {"kind": "fsdp1", "limit_all_gathers": False}},
        {"fsdp": {"shard": 4, "replicate": "once"}},
        {"fsdp": {"kind": "yafsdp"}},
        {"fsdp": {}, "accumulate": True},
        {"zero": 2, "bucket_mb": 1000.0},
        {"zero": 3, "bucket_mb": 1000.0},
        {"zero": 3, "deepspeed": {}},
        {"fsdp": {}, "pp": 2},
    ],
)
def test_check_says_the_peak_of_the_simulation(keys: dict[str, Any]) -> None:
    """It simulates, but YaFSDP, whose buffers stay: all else comes and goes beside kernels."""
    model = {**BASE["model"], "sequence": 8192}
    read = recipe_file.parse({**BASE, "model": model, "parallelism": keys})
    said, found = check(read), run(read).summary["memory"]
    peaks = [entry["peak_bytes"] for entry in said["memory"]]
    assert peaks == [entry["peak_bytes"] for entry in found]
    assert said["simulated"] == (keys.get("fsdp", {}).get("kind") != "yafsdp")


def test_accumulation_of_case_15(shared: Path) -> None:
    """8 x 2 A100, 4 microbatches: 4 scatters of each unit and one sum across the copies, whose
    bytes are those of one microbatch; gradients stay a share of 3.74 GiB."""
    case = shared.parent / "cases/reports/15-hsdp-accumulation/recipe.toml"
    table = {"kind": "fsdp2", "reshard_after_forward": True, "shard": 8, "replicate": "once"}
    result, each = run(case, {"parallelism.fsdp": table}), run(case)
    graph = result.timeline.graph
    count = Counter(graph.names[name] for name in graph.name)
    assert count["grad_reduce_scatter"] == 4 * count["grad_all_reduce"] == 4 * 33  # 32 layers, root
    share = 4 * 8030261248 / 8
    assert graph.persistent[0]["gradients"] == share
    assert round(share / 2**30, 2) == 3.74
    assert result.summary["bytes_sent"]["replicate"]["0"] == pytest.approx(share, rel=1e-12)
    assert each.summary["bytes_sent"]["replicate"]["0"] == pytest.approx(4 * share, rel=1e-12)
    held = result.summary["memory"][0]["peak_bytes"]
    assert check(result.recipe)["memory"][0]["peak_bytes"] == pytest.approx(held, rel=1e-9)
