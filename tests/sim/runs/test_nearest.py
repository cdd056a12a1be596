"""The nearest measured runs: the table is that of the results, the distance as documented."""

from __future__ import annotations

import pytest

from sim.machine import cluster
from sim.recipe import recipe_file
from sim.runs.nearest import Job, distance, job_of, measured, nearest
from validation import measured as made
from validation import tables
from validation.readme import RESULTS

JOB = Job("H100", 1e15, 64, 7e10, False, True, False)


@pytest.mark.slow
def test_the_table_is_that_of_the_results():
    assert made.TABLE.read_text() == made.table(RESULTS.read_text()), (
        "run: python -m validation.measured"
    )


def test_every_step_time_is_in_the_table():
    rows = [row for name in tables.names() for row in tables.read(name).rows if row.family]
    assert [run.family for run in measured()] == [row.family for row in rows]


@pytest.mark.parametrize(
    ("change", "away"),
    [
        ({}, 0.0),
        ({"gpu": "H800"}, 0.5),
        ({"gpu": "A100", "peak": 2.5e14}, 2.5),
        ({"gpus": 256}, 1.0),
        ({"gpus": 16}, 1.0),
        ({"parameters": 1.4e11}, 1.0),
        ({"sharded": True}, 2.0),
        ({"pipeline": False, "fp8": True}, 2.0),
    ],
)
def test_the_distance_counts_what_it_says(change, away):
    other = JOB._replace(**change)
    assert distance(JOB, other) == distance(other, JOB) == pytest.approx(away)


def test_the_nearest_run_of_a_published_row_is_itself():
    row = next(row for row in tables.read("dgxc_v25_02").rows if "70b" in row.id)
    recipe = recipe_file.load(row.recipe, row.overrides)
    first, second, _ = nearest(recipe, cluster.load("dgx_h100", 64).gpu)
    assert first["run"] == "llama3-70b (70.6B) on 64 H100"
    assert (first["family"], first["distance"]) == ("DGX-C H100 bf16", 0.0)
    assert first["row"] == row.id
    assert second["distance"] > 0.0


@pytest.mark.parametrize("preset", ["resnet-50", "mixtral-8x7b"])
def test_any_model_has_nearest_runs(preset):
    recipe = recipe_file.parse(
        {"model": {"preset": preset}, "cluster": {"topology": "dgx_a100", "gpus": 8},
         "training": {"global_batch": 64}}
    )  # fmt: skip
    gpu = cluster.load("dgx_a100", 8).gpu
    assert job_of(recipe, gpu).parameters > 1e7
    assert len(nearest(recipe, gpu)) == 3
