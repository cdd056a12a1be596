"""Jobs of other programs that public reports are about, with their right figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim import run
from sim.recipe import recipe_file

GIB = 2**30


@pytest.mark.slow
def test_a_pipeline_of_torchtitan_with_fsdp_keeps_whole_gradients(shared: Path) -> None:
    """4 bytes for each of a stage's 4.015e9 parameters, reduced once a step.

    With one kernel for the gate 33.95 GiB, but nothing is compiled: silu's output stays too, 14,336
    numbers of 2 bytes for each of 2,048 tokens, in 8 layers that keep all and 2 microbatches.
    """
    result = run(shared.parent / "cases/reports/11-torchtitan-pp-fsdp/recipe.toml")
    memory = result.summary["memory"][0]
    assert memory["by_category"]["gradients"] / GIB == pytest.approx(14.96, abs=0.005)
    assert max(m["peak_bytes"] for m in result.summary["memory"]) / GIB == pytest.approx(
        33.95 + 2 * 8 * 2048 * 14336 * 2 / GIB,
        abs=0.06,  # and silu's output of what runs again
    )
    assert 0.9 < result.summary["step_time_s"] < 1.2  # the report's 0.944 s is at boost clock


@pytest.mark.slow
def test_a_configuration_of_2024_is_as_parallel_as_it_says(shared: Path) -> None:
    """Degrees in [training] and [experimental], split before layer 16, four microbatches of 2."""
    job = recipe_file.load(shared.parent / "cases/reports/10-torchtitan-old-keys/recipe.toml")
    split, training = job.parallelism, job.training
    assert (split.tp, split.pp, split.dp, split.sp) == (4, 2, 1, True)
    assert job.schedule.layers_per_stage == (16, 16)
    assert (job.microbatches, training.micro_batch, training.global_batch) == (4, 2, 8)
    assert run(job).summary["step_time_s"] == run(recipe_file.parse(NEW)).summary["step_time_s"]


NEW = {
    "model": {"preset": "llama3-8b", "sequence": 2048, "fused": False,
        "kernels": {"rope": "complex", "loss": "torch"}},
    "cluster": {"topology": "dgx_a100", "gpus": 8},
    "parallelism": {"tp": 4, "pp": 2, "sp": True, "p2p": "batched", "bucket_mb": 104.8576},
    "training": {"micro_batch": 2, "global_batch": 8, "recompute": {"every": 2}},
    "simulation": {"host": "eager"},
}  # fmt: skip
