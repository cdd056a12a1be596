"""What traincast itself costs, as ratios within one run (``pytest -m benchmarks``)."""

from __future__ import annotations

import pytest

from validation import timing
from validation.timing import CALCULON, DENSE_JOB, LAYOUTS

pytestmark = pytest.mark.benchmarks


def test_commands_start_as_fast_as_a_formula() -> None:
    """Of Calculon's example: a small run 1.5, a check 1.25, help and lists 1."""
    took = timing.cold()
    of_calculon = {name: s / took["import numpy"] / CALCULON for name, s in took.items()}
    print(of_calculon)
    assert of_calculon["run --json"] <= 1.5
    assert of_calculon["check"] <= 1.25
    assert max(of_calculon["--help"], of_calculon["list models"]) <= 1.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_proof_grows_slower_than_the_cluster(layout: str) -> None:
    """From 512 to 16,384 GPUs, 32 times as many; and it is found."""
    few, many = (timing.alone("proof", layout, gpus) for gpus in (512, 16_384))
    print(few, many)
    assert many["proven"]
    assert many["seconds"] <= 16 * few["seconds"]
    assert many["bytes"] <= 300e6


def test_a_run_on_many_gpus_costs_at_most_twice_that_on_few() -> None:
    few, many = (timing.whole(DENSE_JOB, gpus).seconds for gpus in (32, 16_384))
    assert many <= 2.0 * few


def test_the_compiled_engine_pays() -> None:
    """On GPT 1T, 4 million ops."""
    found = timing.alone("engines")
    print(found)
    assert found["simpy_s"] >= 4.0 * found["compiled_s"]


def test_a_sweep_pays_for_simulating_not_for_starting() -> None:
    """A further configuration costs less than a cold start with this job."""
    whole = timing.whole(DENSE_JOB, 64).seconds
    assert timing.swept()["seconds"] <= 0.5 * whole


def test_analyze_is_linear() -> None:
    """Four times the launches take at most five times as long."""
    few, many = timing.analyzed(20_000), timing.analyzed(80_000)
    print(few, many)
    assert many["seconds"] <= 5.0 * few["seconds"]
    assert many["bytes"] <= 4.0 * few["bytes"]
