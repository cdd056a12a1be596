"""The slowest of several GPUs: against closed forms and against draws."""

import math

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.graph import Compute
from sim.machine import cluster
from sim.machine.assumed import assumed
from sim.machine.spread import expected, tensor_works


@pytest.mark.parametrize("sigma", [0.005, 0.02, 0.1])
def test_the_slower_of_two(sigma):
    """The larger of two log-normal numbers of mean 1 has the mean 2 Phi(sigma / sqrt 2)."""
    assert expected(sigma, 1) == pytest.approx(1.0, abs=1e-7)
    assert expected(sigma, 2) == pytest.approx(1.0 + math.erf(sigma / 2.0), abs=1e-7)


@pytest.mark.parametrize(
    ("count", "most"), [(3, 0.8463), (8, 1.4236), (100, 2.5076), (1000, 3.2414)]
)
def test_the_slowest_of_many(count, most):
    """With a small sigma it is 1 + sigma times the mean of the largest of n normal numbers (Harter
    1961)."""
    assert (expected(1e-5, count) - 1.0) / 1e-5 == pytest.approx(most, abs=1e-4)


def test_parts_of_a_group_count_as_its_gpus():
    """Four stages of 8 are 32 GPUs; what is not tensor work waits, but is not slower."""
    assert expected(0.03, 8, [(1.0, 0.5)] * 4) == pytest.approx(expected(0.03, 32), abs=1e-6)
    uneven = [(1.0, 0.2), (0.9, 0.25)]
    drawn = np.exp(0.05 * np.random.default_rng(1).standard_normal((100_000, 2, 4)) - 0.05**2 / 2)
    slowest = drawn.max(axis=2)
    seconds = np.max([slowest[:, k] * a + b for k, (a, b) in enumerate(uneven)], axis=0)
    grid = np.linspace(0.5, 2.0, 10_001)
    alike = np.max([grid * a + b for a, b in uneven], axis=0)
    assert expected(0.05, 4, uneven) == pytest.approx(
        np.interp(seconds, alike, grid).mean(), abs=4e-4
    )
    assert expected(0.05, 4, uneven) < expected(0.05, 8) - 1e-3


def test_no_spread_is_no_factor():
    assert expected(0.0, 1000, [(1.0, 0.0), (2.0, 1.0)]) == 1.0


def test_who_does_no_tensor_work_has_no_slowest():
    """Such a stage takes what it takes, also where it takes longest."""
    assert expected(0.03, 8, [(0.0, 1.0)]) == 1.0
    assert expected(0.03, 8, [(0.0, 1.0), (0.9, 0.0)]) == expected(0.03, 8)


def test_tensor_work_is_products_and_attention():
    kinds = ("gemm", "attention_backward", "norm", "optimizer")
    assert tensor_works([Compute(kind, 1.0, 1.0) for kind in kinds]).tolist() == [1, 1, 0, 0]


def test_a_topology_says_its_spread(tmp_path):
    """Without, it is what is assumed; at boost clock GPUs are alike."""
    path = tmp_path / "own.toml"
    path.write_text('base = "dgx_h100"\n[gpu]\nspread = 0.04\n', encoding="utf-8")
    assert cluster.load(path, 8).gpu.spread == 0.04
    assert cluster.load("dgx_h100", 8).gpu.spread == assumed("gpu")["spread"]
    assert cluster.at_boost(cluster.load(path, 8)).gpu.spread == 0.0
    path.write_text('base = "dgx_h100"\n[gpu]\nspread = 4\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"gpu\.spread = 4 must be at most 1"):
        cluster.load(path, 8)
