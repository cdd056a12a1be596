"""The engine's speed and memory at full size: ratios within one run (``pytest -m benchmarks``)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import pytest

from sim.engine.choice import missing
from validation.engines import engines_1t, engines_noise, engines_offload, engines_single
from validation.scale import step_1t, steps_alone, unshared

pytestmark = pytest.mark.benchmarks
Result = TypeVar("Result")


def alone(case: Callable[[], Result]) -> Result:
    """Measure in a fresh process, whose peak of memory is the case's own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(case).result()


def test_a_step_of_gpt_1t_with_sharing() -> None:
    """Millions of ops at a quarter of a bare SimPy replay, building a quarter of the whole."""
    scale = alone(step_1t)
    total = scale.build_s + scale.price_s + scale.simulate_s
    assert scale.ops > 4_000_000
    assert scale.shared > 0
    assert scale.ratio >= 0.25
    assert scale.build_s / total <= 0.25
    assert scale.bytes_per_op <= 350


def test_the_same_step_with_nothing_shared() -> None:
    scale = alone(unshared)
    assert scale.shared == 0
    assert scale.ratio >= 0.55
    assert scale.bytes_per_op <= 350


def test_one_op_per_step() -> None:
    """With nothing to run in one event, against a bare replay; the aim is 0.6."""
    assert alone(steps_alone).ratio >= 0.38


@pytest.mark.skipif(bool(missing()), reason="needs Numba (traincast[fast])")
@pytest.mark.parametrize(
    ("case", "least"),
    [
        (engines_1t, 4.0),
        (engines_noise, 6.0),
        (engines_offload, 5.0),
        (engines_single, 4.5),  # the aim is 12
    ],
)
def test_the_compiled_engine_over_simpys(case: Callable[[], float], least: float) -> None:
    """Whole simulations, with the search for what may meet, which both do alike."""
    assert alone(case) >= least
