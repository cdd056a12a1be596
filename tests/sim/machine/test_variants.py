"""Prices with an assumed value at an end of its range, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sim.graph import Builder, Compute
from sim.machine import cluster
from sim.machine.assumed import ranges
from sim.machine.price import price
from sim.machine.variants import variant


def test_a_gpu_that_draws_more_at_idle_has_less_power_left_under_a_cap():
    """500 of 700 W with 120 W at idle: shares of rated less idle; 700 of 700 W is all of it."""
    works = [Compute("gemm", 1e12, 1e9, (1, 8192, 8192, 8192))]
    b = Builder()
    b.add("gemm", 0, "compute", works[0])
    for name, cap in (("h100_96gb", 500.0), ("dgx_h100", 700.0)):
        on = cluster.load(name, 1)
        usual = price(b.graph(), on, {})
        for value in (1.0, *ranges()["gpu.idle"][1:]):
            idle = 120.0 * value
            found = variant(usual, on.gpu, works, "gpu.idle", value).limits
            assert found.power == pytest.approx((cap - idle) / (700.0 - idle), rel=1e-12)


def test_norms_take_longer_and_no_other_kernel():
    works = [Compute("norm", 0.0, 1e8), Compute("norm", 0.0, 1e8, by="norm_backward"),
             Compute("elementwise", 0.0, 1e8)]  # fmt: skip
    b = Builder()
    for work in works:
        b.add("op", 0, "compute", work)
    on = cluster.load("dgx_h100", 1)
    usual = price(b.graph(), on, {})
    found = variant(usual, on.gpu, works, "kernels.norm", 1.5)
    expected = usual.alone + 0.5 * usual.memory * np.array([1.0, 1.0, 0.0])
    assert found.alone == pytest.approx(expected, rel=1e-12)
    assert found.traffic / usual.traffic == pytest.approx([1.5, 1.5, 1.0])
    assert variant(usual, on.gpu, works[2:], "kernels.norm", 1.5) is usual
