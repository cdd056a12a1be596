"""Arithmetic beside communication: by hand, and against measured kernels and collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.engine.loop import simulate
from sim.graph import Builder, Communication, Compute, Work
from sim.machine.assumed import assumed
from sim.machine.cluster import Cluster, at_boost, load, undisturbed
from sim.machine.hardware import CommunicationCost, table
from tests.recipes import ran
from traces.calibration.contention import (
    COPIES,
    GATHER,
    MATMUL,
    OVERLAPPED,
    SEQUENTIAL,
    beside,
    contended,
    fit,
    priced,
)

SCATTER = GATHER._replace(collective="reduce_scatter")


def test_arithmetic_loses_speed_while_data_moves_and_sms_all_along() -> None:
    """At half speed for 1 s of latency, at (1 - 0.5 x 0.5) / 2 for 3 s, alone for the rest."""

    def kernel(work: Work) -> tuple[float, float, float]:
        assert isinstance(work, Compute)
        return (work.flops, work.bytes, 0.0)

    b = Builder()
    b.add("gemm", 0, "compute", Compute("gemm", 6.0, 3.0))
    b.join([b.add("gather", 0, "dp", GATHER)])
    load = CommunicationCost(1.0, size=3.0, links=(0,), coefficients=(1.0,), sms=50, hbm=0.5)
    machine = table(b.graph().works, kernel, lambda _: load, np.array([1.0]), 100, contention=0.5)
    left = 6.0 - 0.5 * 1.0 - 0.375 * 3.0
    assert simulate(b.graph(), machine).end.tolist() == pytest.approx([4.0 + left, 4.0], rel=1e-15)


@pytest.mark.parametrize(
    "work", [GATHER, *(GATHER._replace(algorithm=one) for one in ("copy", "exchange"))]
)
def test_undisturbed_kernels_take_what_they_take_alone(work: Communication) -> None:
    """And so does communication, which slows kernels otherwise; also that of copy engines."""
    cluster = at_boost(load("dgx_h100", 8))
    kernel, gather = (beside(cluster, one).seconds for one in (MATMUL, work))
    assert beside(undisturbed(cluster), MATMUL, work).end.tolist() == [kernel, gather]
    disturbed = beside(cluster, MATMUL, work).end.tolist()
    assert disturbed[0] > 1.1 * kernel
    assert disturbed[1] == gather


def test_one_benchmark_shows_how_much() -> None:
    """One after the other, and both overlapped times, to which the contention is fitted."""
    cluster = load("dgx_h100", 8)
    assert fit(cluster) == pytest.approx(assumed("communication")["contention"], abs=0.005)
    alone = (beside(at_boost(cluster), work).seconds for work in (MATMUL, GATHER))
    assert sum(alone) == pytest.approx(SEQUENTIAL, rel=0.05)
    for work, seconds in OVERLAPPED.items():
        assert beside(cluster, MATMUL, work).seconds == pytest.approx(seconds, rel=0.02)


def kept(cluster: Cluster, gather: Communication) -> float:
    """Share of its speed that arithmetic keeps beside one such communication after another."""
    b = Builder()
    work = MATMUL._replace(flops=50 * MATMUL.flops, bytes=0.0)
    b.add("matmul", 0, "compute", work)
    for _ in range(20):
        b.join([b.add("gather", 0, "dp", gather)])
    matmul, *gathers = simulate(b.graph(), priced(b.graph(), cluster)).end.tolist()
    assert matmul > gathers[-1]
    return (beside(cluster, work).seconds - (matmul - gathers[-1])) / gathers[-1]


def test_products_beside_nccl_elsewhere() -> None:
    """On an A100 in 2.08 instead of 1.18 ms beside an all-gather (NVIDIA/nccl issue 1428); on 8
    H100 with FSDP 30 to 40 % slower (pytorch/pytorch pull 179937)."""
    a100, h100 = (at_boost(load(name, 8)) for name in ("dgx_a100", "dgx_h100"))
    assert 1.18 / kept(a100, GATHER) == pytest.approx(2.08, rel=0.1)
    assert 1.18 / kept(contended(a100, 0.99), GATHER) == pytest.approx(2.08, rel=0.01)
    assert all(0.6 <= kept(h100, work) <= 0.7 for work in (GATHER, SCATTER))
    assert kept(h100, COPIES) > kept(h100, GATHER) + 0.15


def test_a_topology_may_state_its_own() -> None:
    h100 = at_boost(load("dgx_h100", 8))
    shares = [kept(contended(h100, c), COPIES) for c in (0.0, 0.5, 1.0)]
    assert shares[0] == pytest.approx(1.0)
    assert shares[1] < 0.95
    assert shares[0] - shares[1] == pytest.approx(shares[1] - shares[2], rel=1e-4)


@pytest.mark.parametrize("value", [-0.1, 1.5, '"much"'])
def test_a_topology_states_a_share(tmp_path: Path, value: object) -> None:
    file = tmp_path / "own.toml"
    text = 'base = "dgx_h100"\n[gpu.communication]\ncontention = {}\n'
    file.write_text(text.format(0.25))
    assert priced(Builder().graph(), load(file, 8)).contention == 0.25
    file.write_text(text.format(value))
    with pytest.raises(InputError, match=r"gpu.communication.contention = .* must be"):
        load(file, 8)


def test_what_each_algorithm_holds() -> None:
    """NCCL 24 SMs; Transformer Engine 1 for a step of a ring, 16 for a pipelined reduce-scatter."""
    cluster = load("dgx_h100", 8)
    step = SCATTER._replace(algorithm="exchange")
    for work, sms, per_byte in (
        (SCATTER, 24, 3.0),
        (step, 1, 2.0),
        (SCATTER._replace(algorithm="pipeline"), 16, 1.5),
        (COPIES, 0, 2.0),
    ):
        b = Builder()
        b.join([b.add("op", 0, "tp", work)])
        machine = priced(b.graph(), cluster)
        assert (machine.sms[0], machine.hbm[0]) == (sms, pytest.approx(per_byte * 367.2 / 3352))


@pytest.mark.slow
def test_gathers_by_copy_engines_speed_fsdp_up() -> None:
    """Llama 3 8B on 8 H100 is 2.4 % faster with copies for gathers and scatters (pytorch/pytorch
    pull 179937); here gathers alone are copied."""
    model, seconds = {"preset": "llama3-8b", "sequence": 4096}, []
    for by in (False, True):
        fsdp = {"kind": "fsdp2", "reshard_after_forward": True, "copy_engines": by}
        found = ran(model, 16, gpus=8, training={"micro_batch": 2}, fsdp=fsdp)
        seconds.append(found.timeline.seconds)
    assert 1.005 <= seconds[0] / seconds[1] <= 1.024


@pytest.mark.slow
@pytest.mark.parametrize("kind", [True, "copies"])
def test_overlap_of_tensor_parallelism_pays_for_its_pieces(kind: bool | str) -> None:
    """Llama 3 70B with full recomputation on 256 H100, tp 8: 1.09 times as fast with async TP
    (pytorch/torchtitan pull 1299), 1.125 in its issue 1185."""
    model, training = {"preset": "llama3-70b", "sequence": 8192}, {"recompute": "full"}
    way = {"gpus": 256, "tp": 8, "sp": True, "fsdp": {"reshard_after_forward": True}}
    way["training"] = training | {"micro_batch": 16}
    plain, cut = (ran(model, 512, tp_overlap=overlap, **way) for overlap in (False, kind))
    seconds = [plain.timeline.seconds, cut.timeline.seconds]
    assert 1.05 <= seconds[0] / seconds[1] <= 1.15
