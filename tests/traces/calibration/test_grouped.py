"""Products of many experts against public measurements: in one kernel, and one after the other.

Transformer Engine's GroupedLinear runs cuBLAS products on four streams. On H100 and B200, where one
product fills the GPU, that takes about as long as one after the other; on A100 it lies between.
"""

import pytest

from sim.graph import Compute
from sim.machine import cluster
from sim.machine.kernels import compute_seconds, derated, gemm_constants

TE = "NVIDIA/TransformerEngine pull 2045, TE 2.7 on H100"
SIMUMAX = "MooreThreads/SimuMax configs/system at 4dcaae51, Transformer Engine 2.11"
REPEATED = 50  # launches in a row of which the measurements are the mean
MEASURED = [  # machine, how, experts, (m, n, k) of each, TFLOP/s, how far off at most, source
    ("dgx_h100", "sequential", 8, (4096, 768, 2048), 627.9, 0.08, TE),
    ("dgx_h100", "sequential", 16, (2048, 768, 2048), 553.9, 0.12, TE),
    ("dgx_h100", "grouped", 8, (4096, 768, 2048), 650.6, 0.15, f"{TE}, CUTLASS"),
    ("dgx_h100", "grouped", 16, (2048, 768, 2048), 636.9, 0.15, f"{TE}, CUTLASS"),
    ("dgx_b200", "sequential", 160, (154, 3072, 5120), 449.3, 0.20, SIMUMAX),
    ("dgx_b200", "sequential", 80, (308, 3072, 5120), 870.2, 0.25, SIMUMAX),
    ("dgx_b200", "sequential", 40, (616, 5120, 3072), 723.0, 0.32, SIMUMAX),
    ("dgx_b200", "sequential", 64, (512, 4096, 7168), 826.0, 0.25, SIMUMAX),
    ("dgx_b200", "sequential", 32, (1024, 4096, 7168), 1031.0, 0.20, SIMUMAX),
    ("dgx_b200", "sequential", 40, (9832, 5120, 1536), 1000.6, 0.20, SIMUMAX),
    ("a100_pcie", "sequential", 20, (1232, 3072, 5120), 220.7, 0.25, SIMUMAX),
    ("a100_pcie", "grouped", 20, (1232, 3072, 5120), 220.7, 0.20, SIMUMAX),
]


def seconds(machine, how, experts, shape):
    """Return the seconds of all products, at the clock of a burst of as many launches."""
    m, n, k = shape
    gpu = cluster.load(machine, 8).gpu
    batch = experts if how == "grouped" else 1
    moved = 2.0 * batch * (m * k + k * n + m * n)
    work = Compute("gemm", 2.0 * batch * m * n * k, moved, (batch, m, n, k))
    arithmetic, memory, fixed = compute_seconds(gpu, work)
    burst = REPEATED * experts / batch * arithmetic
    slower = derated(gemm_constants(gpu, "bf16"), burst)
    return experts / batch * (max(arithmetic * slower, memory) + fixed)


@pytest.mark.parametrize(
    ("machine", "how", "experts", "shape", "measured", "within", "source"), MEASURED
)
def test_experts_take_about_their_public_time(
    machine, how, experts, shape, measured, within, source
):
    m, n, k = shape
    expected = 2.0 * experts * m * n * k / (measured * 1e12)
    assert seconds(machine, how, experts, shape) == pytest.approx(expected, rel=within), source


@pytest.mark.parametrize(("experts", "shape", "measured"), [(160, (154, 3072, 5120), 449.3)])
def test_one_kernel_would_be_far_too_fast_for_cublas_on_streams(experts, shape, measured):
    """The key is needed: a B200 takes 1.7 times as long as one kernel of all experts would."""
    m, n, k = shape
    expected = 2.0 * experts * m * n * k / (measured * 1e12)
    assert expected > 1.5 * seconds("dgx_b200", "grouped", experts, shape)
