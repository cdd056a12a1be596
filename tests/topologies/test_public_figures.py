"""Machines against public figures: bus bandwidth of large all-reduces, rates of matrix products.

A machine without a figure says in its output whose constants it has, unless it has those of a
machine with one.
"""

from dataclasses import replace

import pytest

from sim.graph import Communication, Compute
from sim.machine.cluster import load
from sim.machine.collectives import alone, traffic
from sim.machine.kernels import compute_seconds, derated, gemm_constants
from sim.machine.power import held
from sim.units import BYTES
from traces.calibration.sustained import PCIE_CAP, check

GIB = 2**30
ALL_REDUCES = [  # machine, GPUs, bytes, GB/s of bus bandwidth, how far off at most, source
    # two nodes of H100: NCCL runs NVLS trees, which pass a GPU's port less than a ring does
    ("dgx_h100", 8, 16 * GIB, 482.1, 0.03, "NVIDIA/nccl-tests issue 309"),
    ("dgx_h100", 16, 16 * GIB, 469.2, 0.05, "NVIDIA/nccl-tests issue 309"),
    ("dgx_h100", 32, 16 * GIB, 365.8, 0.10, "NVIDIA/nccl-tests issue 309"),
    ("aws_p5", 16, 16 * GIB, 487.1, 0.10, "awsome-distributed-training, nccl-tests README"),
    ("roce_h100", 16, 8 * GIB, 470.0, 0.05, "NVIDIA/nccl-tests issue 309"),
    ("aws_p4d", 16, 2 * GIB, 78.3, 0.05, "awsome-distributed-training, nccl-tests README (p4de)"),
    ("dgx_b200", 8, 8 * GIB, 838.0, 0.05, "stas00/ml-engineering, network"),
    ("dgx_b200", 16, 32 * GIB, 719.7, 0.10, "togethercomputer/together-nccl-tests, baselines"),
    ("azure_nd_h100_v5", 8, 8 * GIB, 478.9, 0.15, "Azure/AI-benchmarking-guide, ND_H100_v5"),
    ("aws_p5en", 8, 16 * GIB, 480.0, 0.15, "stas00/ml-engineering, 8 H200"),
    ("jean_zay_a100", 8, GIB, 229.4, 0.12, "vTrain f8dda847, trace/a100, 8 GPUs"),
    ("l40s_pcie", 2, GIB / 2, 20.1, 0.05, "aiconfigurator-core 0.12.0, nccl_perf"),
    ("gb200_nvl4", 4, 8 * GIB, 679.6, 0.10, "Azure/AI-benchmarking-guide, ND_GB200_v6, ring"),
    # NVLink SHARP adds up buffers of parts of the domain too; here only of all 72 GPUs
    ("gb200_nvl72", 8, 8 * GIB, 811.0, 0.25, "lixueduan.com, GB200 MNNVL, two trays"),
    ("dgx_b300", 8, GIB / 2, 703.6, 0.10, "aiconfigurator-core 0.12.0, nccl_perf"),
    ("alps_gh200", 4, 4 * GIB, 339.0, 0.05, "boeschf/nccl-benchmark-on-alps-2025"),
    ("alps_gh200", 64, 4 * GIB, 92.1, 0.05, "boeschf/nccl-benchmark-on-alps-2025"),
    ("alps_gh200", 512, 4 * GIB, 89.5, 0.10, "boeschf/nccl-benchmark-on-alps-2025"),
    ("mi300x", 2, 4e9, 47.7, 0.05, "stas00/ml-engineering, network, peer-to-peer bandwidth"),
    ("mi300x", 8, 4e9, 312.9, 0.05, "stas00/ml-engineering, network, peer-to-peer bandwidth"),
    ("dgx1_v100", 4, GIB, 85.4, 0.05, "vTrain f8dda847, trace/v100, 4 GPUs"),
    ("dgx1_v100", 8, GIB, 134.5, 0.05, "vTrain f8dda847, trace/v100, 8 GPUs"),
]
SMALL = [  # microseconds of an all-reduce of 1 KiB over two nodes
    ("aws_p5", 16, 69.2, "awsome-distributed-training, nccl-tests README"),
    ("aws_p4d", 16, 165.0, "awsome-distributed-training, nccl-tests README (p4de)"),
]
MAMF = "stas00/ml-engineering, compute/accelerator, MAMF"
GEMMS = [  # machine, (m, n, k), dtype, TFLOP/s, how far off at most, source
    ("aws_p5", (2048, 2048, 13312), "bf16", 794.5, 0.15, MAMF),
    ("aws_p5en", (2048, 2048, 13312), "bf16", 794.5, 0.15, f"{MAMF}: H200 is the same"),
    ("azure_nd_h100_v5", (8192, 8192, 8192), "fp8", 1290.1, 0.20, "ND_H100_v5"),
    ("jean_zay_a100", (1024, 10240, 5120), "bf16", 271.2, 0.15, MAMF),
    ("a100_pcie", (2048, 5120, 6144), "bf16", 252.9, 0.15, MAMF),
    ("alps_gh200", (1024, 15360, 4096), "bf16", 828.6, 0.15, MAMF),
    ("gb200_nvl72", (4096, 9728, 2048), "bf16", 1822.0, 0.20, MAMF),
    ("gb200_nvl4", (8192, 8192, 8192), "fp8", 2876.6, 0.20, "ND_GB200_v6"),
    ("mi300x", (10240, 15360, 8192), "bf16", 668.4, 0.20, MAMF),  # its tiles come from it
    ("mi355x", (12288, 8192, 8192), "bf16", 1565.0, 0.20, MAMF),  # its tiles come from it
    ("dgx_b300", (12288, 18432, 1024), "bf16", 1769.0, 0.30, MAMF),
]
BESIDES = [  # machines with constants of others; a new one need not be here
    "a100_pcie", "aws_p4d", "dgx1_v100", "gb200_nvl72", "h100_pcie_2nic", "h100_pcie_4nic",
    "l40s_pcie", "mi300x", "mi355x", "narval", "roce_h100", "rtx4090",
]  # fmt: skip
BEFORE = {"dgx_a100", "dgx_b200", "dgx_h100", "dgx_h200", "selene"}
"""Machines that have all their constants from their own measurements."""


def all_reduce(cluster, size):
    work = Communication("all_reduce", float(size), tuple(range(cluster.gpus)), "dp")
    return alone(cluster, traffic(cluster, work))


@pytest.mark.parametrize(("name", "gpus", "size", "measured", "within", "source"), ALL_REDUCES)
def test_large_all_reduces_reach_the_public_bus_bandwidth(
    name, gpus, size, measured, within, source
):
    assert source
    seconds = all_reduce(load(name, gpus), size)
    assert 2 * (gpus - 1) / gpus * size / seconds / 1e9 == pytest.approx(measured, rel=within)


@pytest.mark.parametrize(("name", "ports"), [("hgx_h100_4nic", 4), ("hgx_h100_2nic", 2)])
def test_rings_over_fewer_ports_reach_the_public_rate_of_each(name, ports):
    """As NCCL's maintainers expect of a port of 400 Gb/s, NVIDIA/nccl-tests issue 290."""
    work = Communication("all_reduce", 8.0 * GIB, tuple(range(32)), "dp", "ring")
    cluster = load(name, 32)
    seconds = alone(cluster, traffic(cluster, work))
    assert 45 < 2 * 31 / 32 * 8 * GIB / seconds / 1e9 / ports <= 48


@pytest.mark.parametrize(("name", "gpus", "measured", "source"), SMALL)
def test_small_all_reduces_over_efa_take_the_public_time(name, gpus, measured, source):
    assert source
    assert all_reduce(load(name, gpus), 1024) * 1e6 == pytest.approx(measured, rel=0.05)


MAMF_RUNS = 100  # of each shape, back to back (stas00/ml-engineering, mamf-finder.py)


@pytest.mark.parametrize(("name", "shape", "dtype", "measured", "within", "source"), GEMMS)
def test_matrix_products_reach_the_public_rate(name, shape, dtype, measured, within, source):
    assert source
    m, n, k = shape
    flops, size = 2.0 * m * n * k, BYTES[dtype] * (m * k + k * n) + 2 * m * n
    work = Compute("gemm", flops, float(size), (1, m, n, k), dtype)
    arithmetic, memory, fixed = compute_seconds(load(name, 1).gpu, work)
    burst = MAMF_RUNS * arithmetic if "MAMF" in source else 1e9  # or until clocks have settled
    longer = derated(gemm_constants(load(name, 1).gpu, dtype), burst)
    rate = flops / (max(arithmetic * longer, memory) + fixed) / 1e12
    assert rate == pytest.approx(measured, rel=within)


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDES)
def test_a_machine_without_a_public_figure_says_that_it_borrows(name):
    """Unless its GPU, or its collectives, are those of a machine that has one."""
    cluster = load(name, 1)
    of_gpu = {load(other, 1).gpu.name for other in {of for of, *_ in GEMMS} | BEFORE}
    links = [load(other, 1).collectives for other in {of for of, *_ in ALL_REDUCES} | BEFORE]
    assert cluster.gpu.name in of_gpu or "gemm" in cluster.borrowed
    assert cluster.collectives in links or "collectives" in cluster.borrowed


def test_an_a100_of_300_w_has_the_power_that_suits_its_products():
    """As its file says: 11 % slower than measured at 300 W, 3 % faster at the 400 W it keeps."""
    gpu = load("a100_pcie", 8).gpu
    derating, power = gemm_constants(gpu, "bf16").derating, gpu.costs["power"]
    limited = replace(gpu, costs={**gpu.costs, "power": {**power, "cap": PCIE_CAP}})
    at_300 = check(gpu, gemm_constants(gpu, "bf16")).bias
    at_400 = (1.0 + at_300) * held(limited, derating) / held(gpu, derating) - 1.0
    assert (power["cap"], at_300, at_400) == pytest.approx((400.0, 0.11, -0.03), abs=0.01)
