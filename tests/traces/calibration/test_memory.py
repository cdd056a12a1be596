"""Memory-bound kernels: shares of the bandwidth by GPU against public measurements."""

import pytest

from sim.graph import Compute
from sim.machine import cluster
from sim.machine.kernels import MEMORY_KINDS, VARIANTS, compute_seconds
from traces.calibration import memory

MACHINES = {"a100": "dgx_a100", "h100": "dgx_h100", "h200": "dgx_h200", "b200": "dgx_b200"}
WITHIN = {  # most that a kind's mean error may be; others: 8 %
    ("a100", "elementwise"): 0.12,  # kernels of 40 to 560 us, fused and not
    ("a100", "cross_entropy"): 0.12,  # reductions beside elementwise kernels
    ("b200", "cross_entropy"): 0.25,  # a forward that reads its logits three times
    ("b200", "norm_backward"): 0.25,  # torch of 2025 on B200, of 2026 on GB300
    ("h100", "norm of other libraries"): 0.45,  # apex 0.22 to 0.34, CuTe DSL 0.73
    ("b200", "norm of other libraries"): 0.67,  # a layer norm, priced as an RMS norm
}


@pytest.mark.parametrize("gpu", MACHINES)
def test_shares_fit_what_was_measured_within_a_stated_error(gpu):
    for error in memory.of(gpu).errors:
        assert error.mean <= WITHIN.get((gpu, error.family), 0.08), error


@pytest.mark.parametrize("gpu", MACHINES)
def test_the_topology_has_the_fitted_shares(gpu):
    costs = cluster.load(MACHINES[gpu], 8).gpu.costs["memory_kernels"]
    found = {k: v for k, v in costs.items() if k != "source"}
    assert found == pytest.approx(dict(memory.of(gpu).constants), rel=1e-3)


def test_every_kind_of_a_new_gpu_says_its_public_point():
    """On H100 and B200 each kind but softmax and embedding, which are A100's, was measured."""
    measured = {row.kind for gpu in MACHINES for row in memory.measured(gpu)}
    assert measured == {*MEMORY_KINDS, *VARIANTS}
    for gpu in ("h100", "b200"):
        own = {row.kind for row in memory.measured(gpu)}
        assert own >= {"norm", "norm_backward", "elementwise", "cross_entropy"}


def test_large_casts_reach_quack_s_bandwidth():
    """3.01 TB/s on H100: its softmax (Dao-AILab/quack, media/2025-07-10), which was not fitted."""
    work = Compute("elementwise", 0.0, 3.01e12)
    _, took, _ = compute_seconds(cluster.load("dgx_h100", 8).gpu, work)
    assert took == pytest.approx(1.0, rel=0.02)
