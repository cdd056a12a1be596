"""What runs of one process share is what each would make for itself, and follows its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedules import Step
from sim.builder import programs
from sim.builder.job import without_plan
from sim.builder.stage import stage_programs
from sim.machine.assumed import assuming
from sim.recipe import recipe_file
from sim.runs import run as runs
from sim.runs import stage_times, sweep
from sim.runs.kept import Kept, alike
from sim.runs.run import job_of
from sim.runs.shared import cluster_of

RECIPE = """
model = { layers = 4, hidden = 256, heads = 4, vocab = 512, sequence = 256 }
cluster = { topology = "./mine.toml", gpus = 16 }
parallelism = { tp = 2, pp = 2 }
training.global_batch = 16
"""
RECIPES = Path(__file__).parents[3] / "validation/recipes"
TOPOLOGY = 'name = "mine"\nbase = "dgx_h100"\n'
BESIDE = {"mine.toml": TOPOLOGY}


def test_a_cluster_is_made_once_for_a_topology(recipe: Path) -> None:
    """Another text in its file is another cluster, and so is another assumption or effect."""
    of = recipe_file.load(recipe)
    one = cluster_of(of)
    assert cluster_of(recipe_file.load(recipe, {"parallelism.tp": 1})) is one
    recipe.with_name("mine.toml").write_text(TOPOLOGY + '[gpu]\nmemory = "40 GB"\n')
    assert cluster_of(of).gpu.memory == 40e9
    assert cluster_of(recipe_file.load(recipe, {"simulation.spread": False})).gpu.spread == 0.0
    boost = cluster_of(recipe_file.load(recipe, {"simulation.clock": "boost"}))
    assert "power" not in boost.gpu.costs
    assert cluster_of(recipe_file.load(recipe, {"cluster.gpus": 8})).gpus == 8
    with assuming("gpu.spread", 0.25):
        assert cluster_of(of).gpu.spread == 0.25


def test_what_is_shared_changes_no_figure(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a sweep, in which each but the first meets what others made."""
    some = [{"parallelism.zero": 1, "parallelism.bucket_mb": size} for size in (1, 2)]
    rows = [sweep.figures(recipe, of) for of in some]
    assert rows[0]["step_time_s"] != rows[1]["step_time_s"] is not None
    monkeypatch.setattr(Kept, "of", lambda self, key, find: find())
    monkeypatch.setattr(programs, "_stage_programs", stage_programs)
    assert [sweep.figures(recipe, of) for of in some] == rows


def test_stages_are_timed_once_for_jobs_that_differ_in_buckets(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where anything else does: a batch, an assumption."""
    ran: list[str] = []
    real = stage_times.stage_timelines
    monkeypatch.setattr(stage_times, "stage_timelines", lambda *a: ran.append(a[-1]) or real(*a))
    zb = {"schedule.name": "zb_1p", "training.global_batch": 8, "cluster.gpus": 4}

    def count(overrides: dict[str, object]) -> int:
        ran.clear()
        job_of(recipe_file.load(recipe, zb | overrides), cluster)
        return len(ran)

    cluster = cluster_of(recipe_file.load(recipe, zb))
    assert count({}) == 2  # the stage with the embedding, and that with the head
    assert {*ran} == {"FIW"}
    assert count({"parallelism.bucket_mb": 1}) == count({"schedule.name": "zb_2p"}) == 0
    assert count({"training.micro_batch": 2}) == 2
    with assuming("power.attention", 0.7):
        assert count({}) == 2


def test_a_step_is_built_once_for_other_perturbations_of_its_ranks(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sweep, whose rows differ all the same."""
    built: list[object] = []
    real = runs.build
    monkeypatch.setattr(runs, "build", lambda *a: built.append(a) or real(*a))
    slow = "perturbations[0].compute"
    rows = [sweep.figures(recipe, {slow: by, "training.global_batch": 24}) for by in (1.5, 2.0)]
    once = len(built)
    assert once > 0
    assert rows[0]["step_time_s"] < rows[1]["step_time_s"]
    again = runs.run(recipe, {slow: 2.0, "training.global_batch": 24})
    assert len(built) == 2 * once  # a run by itself keeps nothing
    assert again.timeline.seconds == rows[1]["step_time_s"]
    sweep.figures(recipe, {slow: 2.0, "training.global_batch": 40})
    assert len(built) == 3 * once


def test_every_job_says_what_it_is() -> None:
    """Of all recipes, whose jobs are keys; two that differ in their order are two."""
    keys = []
    for path in (*RECIPES.glob("*.toml"), *RECIPES.glob("*.toml")):
        job = without_plan(recipe_file.load(path))
        keys.append(alike(replace(job, plan=[[Step(0, "F", len(keys))]]), "plan"))
        assert hash(alike(job)) == hash(alike(replace(job, plan=[])))
    assert len({*keys}) == len(keys) // 2
    assert alike(job) != alike(replace(job, plan=[[Step(0, "F", 0)]]))
