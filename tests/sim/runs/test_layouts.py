"""What layouts do to a step, from first principles: no rule says so, the simulation does."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sim.runs.run import run

pytestmark = pytest.mark.slow

RECIPE = """
model = { preset = "llama3-8b", layers = 8, sequence = 4096 }
cluster = { topology = "dgx_h100", gpus = 16 }
training = { global_batch = 16, grad_dtype = "bf16" }
"""
SLOW = """
base = "dgx_h100"
name = "slow_fabric"

[node.nic]
count = 1
bandwidth = "1.25 GB/s"
latency = "10 us"
source = "10 Gb/s Ethernet; a test's own"
"""
ACROSS = {"parallelism.tp": 16, "parallelism.sp": True}
FSDP2 = {"parallelism.fsdp": {"kind": "fsdp2"}}
BESIDE = {"slow.toml": SLOW}


def speed(recipe: Path, *ways: dict[str, object]) -> float:
    """Tokens per second and GPU."""
    result = run(recipe, {key: value for way in ways for key, value in way.items()})
    return float(result.summary["tokens_per_s"]) / result.recipe.cluster.gpus


def test_a_bucket_can_be_too_small_and_too_large(recipe: Path) -> None:
    """Small ones pay more latencies, large ones start late: the best lies between."""
    small = {"model.hidden": 1024, "model.ffn": 2816, "model.heads": 8, "model.kv_heads": 8}
    many = {"cluster.gpus": 64, "training.global_batch": 64, **small}
    curve = [speed(recipe, many, {"parallelism.bucket_mb": mb}) for mb in (0.1, 40, 4000)]
    assert curve[1] > curve[0]
    assert curve[1] > curve[2]


def test_ddp_and_fsdp_stay_near_linear(recipe: Path) -> None:
    """From one node to 32, on a fast network; and neither is far from the other."""
    rate = {}
    for gpus in (8, 256):
        size = {"cluster.gpus": gpus, "training.global_batch": 2 * gpus}
        rate[gpus] = [speed(recipe, size, way) for way in ({}, FSDP2)]
    for one, many in zip(rate[8], rate[256], strict=True):
        assert many > 0.9 * one
    assert rate[256][0] == pytest.approx(rate[256][1], rel=0.2)


def test_tensor_parallelism_across_nodes_is_slow(recipe: Path) -> None:
    """Its collectives are exposed; inside a node they are exposed too, but fast."""
    inside = speed(recipe, {"parallelism.tp": 8, "parallelism.sp": True})
    assert speed(recipe, ACROSS) < 0.65 * inside


def test_pipelines_bear_slow_links(recipe: Path) -> None:
    """One hop of b s h per microbatch, against four collectives of it in every layer."""
    slow = {"cluster.topology": "slow.toml"}
    pipeline = {"parallelism.tp": 8, "parallelism.pp": 2, "parallelism.sp": True}
    assert speed(recipe, slow, pipeline) > 10 * speed(recipe, slow, ACROSS)
    lost = [speed(recipe, slow, way) / speed(recipe, way) for way in (pipeline, ACROSS)]
    assert lost[0] > 10 * lost[1]


def test_sharding_parameters_costs_half_as_much_again_on_a_slow_network(recipe: Path) -> None:
    """ZeRO-2 and HSDP send 2 (N - 1) G / N between nodes, ZeRO-3 three: gathered twice."""
    slow = {"cluster.topology": "slow.toml"}
    split = {"parallelism.zero": 2, "parallelism.accumulate": True}
    hybrid = {"parallelism.fsdp": {"kind": "fsdp2", "shard": 8}}
    full = speed(recipe, slow, {"parallelism.zero": 3})
    assert speed(recipe, slow, split) == pytest.approx(1.5 * full, rel=0.1)
    assert speed(recipe, slow, hybrid) > 1.2 * speed(recipe, slow, FSDP2)
    assert speed(recipe, FSDP2) > 10 * speed(recipe, slow, FSDP2)


def test_zigzag_balances_causal_attention(recipe: Path) -> None:
    """Contiguous parts leave the last rank with the most work, and the others wait for it."""
    long = {"parallelism.cp": 4, "model.sequence": 65536, "training.global_batch": 4}
    zigzag, striped, contiguous = (
        speed(recipe, long, {"parallelism.cp_placement": placed})
        for placed in ("zigzag", "striped", "contiguous")
    )
    assert zigzag > 1.3 * contiguous
    assert zigzag == pytest.approx(striped, rel=0.02)


def test_more_tensor_parallelism_can_be_slower(recipe: Path) -> None:
    """Shards of small matrices use the GPU badly, and every layer's collectives stay."""
    small = {
        "model.hidden": 2048, "model.ffn": 5504, "model.heads": 16, "model.kv_heads": 8,
        "cluster.gpus": 8, "parallelism.sp": True,
    }  # fmt: skip
    rate = [speed(recipe, small, {"parallelism.tp": tp}) for tp in (2, 4, 8)]
    assert all(less > more for less, more in pairwise(rate))
