"""From a recipe file to its timeline, in one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sim
from sim.builder.strategies.exchange import Policy
from sim.engine import DeadlockError
from sim.runs.run import job_of, load, run

RECIPE = """
model = { layers = 4, hidden = 256, heads = 8, vocab = 1000, sequence = 128 }
cluster = { topology = "dgx_a100", gpus = 8 }
parallelism = { tp = 2, pp = 2, sp = true, p2p = "batched" }
training = { micro_batch = 2, global_batch = 16 }
"""


def test_a_recipe_becomes_the_job_that_it_describes(recipe: Path) -> None:
    """What is left over is dp; microbatches are what one replica gets."""
    job = job_of(load(recipe))
    assert (job.mesh.tp, job.mesh.dp, job.mesh.pp, job.mesh.world) == (2, 2, 2, 8)
    assert job.data.degree == 2
    assert [len(steps) for steps in job.plan] == [2 * 16 // (2 * 2)] * 2
    assert tuple(job.layers_per_stage) == (2, 2)
    assert job.parallelism.sp
    assert job.policy.name == "batched"
    assert not job.policy.paired
    assert job.boundary_bytes == 2 * 128 * 256 * 2 / 2  # b s h of 2 bytes, over tp with sp


def test_overrides_go_over_the_file(recipe: Path) -> None:
    job = job_of(
        load(recipe, {"parallelism.pp": 1, "training.micro_batch": 1, "parallelism.zero": 1})
    )
    assert (job.mesh.pp, job.mesh.dp, job.training.micro_batch, job.parallelism.zero) == (
        1, 4, 1, 1,
    )  # fmt: skip
    interleaved = job_of(load(recipe, {"schedule.name": "interleaved_1f1b", "schedule.chunks": 2}))
    assert interleaved.stages == 4
    assert isinstance(interleaved.policy, Policy)
    assert interleaved.policy.paired


def test_a_run_is_folded_and_says_how_far(recipe: Path) -> None:
    """The same step with two ranks as with all eight, and the same bits each time."""
    folded, again = run(recipe), run(recipe)
    whole = run(recipe, {"simulation.fold": "none"})
    assert folded.lanes.axes == ("tp", "dp")
    assert folded.timeline.graph.ranks().tolist() == [0, 4]
    assert set(folded.timeline.graph.stands_for.values()) == {4}
    assert whole.timeline.graph.ranks().tolist() == list(range(8))
    assert folded.timeline.seconds == pytest.approx(whole.timeline.seconds, rel=1e-9)
    assert np.array_equal(folded.timeline.start, again.timeline.start)
    assert np.array_equal(folded.timeline.end, again.timeline.end)


def test_numbers_of_the_summary_follow_from_the_timeline(recipe: Path) -> None:
    """Tokens and model FLOPs over the step; 72 B s L h² (1 + s / 6h + V / 12hL) by hand."""
    result = run(recipe)
    summary, step = result.summary, result.timeline.seconds
    assert summary["step_time_s"] == step
    assert summary["tokens_per_s"] == pytest.approx(16 * 128 / step)
    h, s, layers, vocab = 256, 128, 4, 1024  # the vocabulary padded
    flops = 72 * 16 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert summary["tflops_per_gpu"] == pytest.approx(flops / step / 8 / 1e12)
    assert summary["mfu"] == pytest.approx(flops / step / 8 / 312e12)


def test_the_report_goes_from_building_to_every_op(recipe: Path) -> None:
    heard: list[tuple[object, ...]] = []
    result = run(recipe, report=lambda *stage: heard.append(stage))
    ops = len(result.timeline.graph)
    assert heard[0] == ("building the graph", 0, 0)
    assert heard[-1] == ("simulating", ops, ops)
    assert heard[1:] == sorted(heard[1:])


def test_what_cannot_run_is_refused_in_a_sentence(recipe: Path) -> None:
    with pytest.raises(ValueError, match="overrides go over a recipe file"):
        run(load(recipe), {"parallelism.pp": 1})
    with pytest.raises(ValueError, match=r"^[^\n]*dp[^\n]*$"):
        run(recipe, {"parallelism.dp": 3})


def test_the_front_of_the_package(recipe: Path) -> None:
    """``from sim import run, load``: the same functions, imported when first used."""
    assert sim.run is run
    assert sim.load is load
    assert isinstance(sim.run(recipe), sim.Result)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = sim.walk
    assert issubclass(DeadlockError, RuntimeError)
