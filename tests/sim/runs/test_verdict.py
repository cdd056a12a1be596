"""What a job is, and what came out, in a sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.machine import cluster as clusters
from sim.recipe import recipe_file
from sim.runs import verdict

RECIPES = Path(__file__).parents[3] / "validation/recipes"
SAID = {
    "zero_bubble_14.6b_1f1b": (
        "gpt-14.6b, 14.6B parameters, on 16 A100-SXM4-80GB (dgx_a100); pp 16, one_f_one_b; "
        "batch 48 x 1,024 tokens, 48 microbatches of 1; fp16"
    ),
    "korthikanti_22b_full": (
        "gpt-22b, 22.1B parameters, on 8 A100-SXM4-80GB (selene); tp 8, recompute full; "
        "batch 4 x 2,048 tokens, 1 microbatch of 4; fp16"
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_job_in_a_sentence(name: str) -> None:
    recipe = recipe_file.load(RECIPES / f"{name}.toml")
    cluster = clusters.load(recipe.cluster.topology, recipe.cluster.gpus)
    assert verdict.job(recipe, cluster) == SAID[name]


def test_features_that_change_a_layout_are_named() -> None:
    model = {"preset": "llama3-8b", "layers": 4}
    data = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "gpus": 8},
        "parallelism": {"tp": 2, "sp": True, "fsdp": {"kind": "fsdp2"}},
        "training": {"global_batch": 8, "recompute": "selective"},
    }
    assert verdict.split(recipe_file.parse(data)) == "tp 2, dp 4, sp, fsdp2, recompute selective"
    data["parallelism"] = {"tp": 2, "pp": 2, "zero": 1}
    assert verdict.split(recipe_file.parse(data)) == (
        "tp 2, pp 2, dp 2, ZeRO-1, recompute selective, one_f_one_b"
    )


def test_the_answer_says_what_does_not_fit_and_how_near_predictions_were() -> None:
    summary = {
        "step_time_s": 2.0, "interval_s": [1.5, 2.5], "mfu": 0.4,
        "memory": [{"rank": 0, "peak_bytes": 2.0**33}, {"rank": 3, "peak_bytes": 2.0**34}],
        "nearest_measured": [{"error": -0.031}],
    }  # fmt: skip
    assert verdict.answer(summary, 2.0**33) == (
        "2 s a step (80 %: 1.5 s to 2.5 s); MFU 40.0%; does not fit: rank 3 needs most, 16.00 of "
        "8.00 GiB; the nearest measured runs were predicted -3.1 % off"
    )
