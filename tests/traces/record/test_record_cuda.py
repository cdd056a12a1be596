"""What the recorder does on a GPU, on the double of one in ``tests/traces/record/cuda_double``.

The double knows what everything takes, so each number is checked against that. That a real GPU
behaves like the double is not shown here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import schedules
from sim.runs.schedule_run import simulate_plan
from traces.record import machine, pipelines, streams, sweep, workers

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow  # workers load torch
DOUBLE = Path(__file__).parent / "cuda_double"
PEAK, MEMORY, LINK, SMS = 400e12, 2e12, 50e9, 132  # what the double takes its times from
VIRTUAL = {"F": 0.005, "I": 0.004, "W": 0.003}


@pytest.fixture(scope="module", autouse=True)
def double(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Workers find the double; the file in which it logs what joined a group over NCCL."""
    log = tmp_path_factory.mktemp("double") / "log"
    log.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(DOUBLE))
        patch.setenv("DOUBLE_LOG", str(log))
        patch.setenv("DOUBLE_GPUS", "1")
        yield log


@pytest.fixture(scope="module")
def found(double: Path) -> dict[str, Any]:
    plans = {name: schedules.load(name)(4, 8) for name in ("one_f_one_b", "zb_v", "dualpipe_v")}
    return streams.record(plans, VIRTUAL, steps=1, warm=1, timeout=1200)


@pytest.mark.parametrize("name", ["one_f_one_b", "zb_v", "dualpipe_v"])
def test_a_pipeline_on_streams_takes_the_makespan_of_its_schedule(
    found: dict[str, Any], name: str
) -> None:
    plan, one = schedules.load(name)(4, 8), found["plans"][name]
    times = {**VIRTUAL, "p2p": (1 << 20) / MEMORY}
    expected = simulate_plan(plan, times, pair="serial")["makespan_s"]
    assert one["measured_s"] == pytest.approx(expected, abs=1e-7)
    assert one["error"] == pytest.approx(0.0, abs=1e-5)
    for rank, steps in enumerate(schedules.flat(plan)):
        ran = [event[0] for event in one["steps"][0]["events"] if event[1] == rank]
        assert ran == [*map(str, steps)]


def test_what_shares_an_engine_is_slowed_and_nothing_else(found: dict[str, Any]) -> None:
    assert "skipped" not in found
    pairs = {tuple(row["works"]): row for row in found["overlap"]}
    assert len(pairs) == 15
    shared = {("gemm", "gemm"), ("h2d", "h2d"), ("d2h", "d2h")}
    for works, row in pairs.items():
        assert row["overlap"] == pytest.approx(0.0 if works in shared else 1.0, abs=1e-3)
        assert row["slowdown"][0] == pytest.approx(1.0, abs=1e-3)
    gemm, spin = pairs["gemm", "gemm"]["alone_s"][0], pairs["spin", "spin"]["alone_s"][0]
    assert gemm == pytest.approx(7 * 2 * 8192**3 / PEAK)  # as many as come nearest to 20 ms
    assert spin == pytest.approx(0.020)


def test_a_product_on_some_sms_takes_as_much_longer(found: dict[str, Any]) -> None:
    assert [row["sms"] for row in found["green"]] == [8, 16, 32, 64, 128]
    for row in found["green"]:
        assert row["gemm_s"] == pytest.approx(row["gemm_all_sms_s"] * SMS / row["sms"])
        assert row["copy_s"] == pytest.approx(row["copy_bytes"] / MEMORY)


def test_kernels_take_what_the_device_says(double: Path) -> None:
    """Sizes are those of a GPU: tensors have no data, and one on the wrong device is an error."""
    out = sweep.record(sweep.WITHIN, 1, 2.0, 1200.0)
    assert "skipped" not in out
    assert out["gpu"] == "Double"
    for row in out["gemm"]:
        assert row["s"] == pytest.approx(2 * row["m"] * row["n"] * row["k"] / PEAK, rel=1e-6)
    for row in out["memory"]:
        expected = row["bytes"] / (MEMORY if row["way"] == "d2d" else LINK)
        assert row["s"] == pytest.approx(expected, rel=1e-3)
    for row in out["attention"]:
        flops = 4 * row["batch"] * row["heads"] * row["sequence"] ** 2 * row["dim"]
        backward = 2.5 if row["what"] == "backward" else 1.0
        assert row["s"] == pytest.approx(flops * backward / PEAK, rel=1e-6)
    kernels = {row["name"]: row for row in out["elementwise"]}
    for name in ("add", "gelu", "softmax"):
        assert kernels[name]["s"] == pytest.approx(kernels[name]["bytes"] / MEMORY, rel=1e-6)
    block = out["block"][0]
    assert block["B"] == pytest.approx(block["I"] + block["W"], rel=1e-3)
    assert block["peak_bytes"] == 2 << 20  # the double's, above what was there before
    assert {row["what"] for row in out["launch"]} == {"kernel", "event round trip"}


def test_one_rank_on_a_gpu_records_a_pipeline_over_nccl(double: Path, tmp_path: Path) -> None:
    sizes = {"d": 64, "seq": 16, "mb": 1, "layers": 2, "heads": 4, "dtype": "bfloat16"}
    ask = pipelines.PipelineOptions(steps=2, warm=1, sizes=sizes, profile=True, timeout=1200)
    plans = {"zb_v": schedules.load("zb_v")(1, 3)}
    ((path, facts),) = pipelines.record(plans, ask, tmp_path, "c")
    assert facts["device"] == "cuda:0"
    assert facts["noise"] == {}
    assert facts["memory"] == [{"before_bytes": 1 << 20, "peak_bytes": 3 << 20}]
    assert facts["steps_as_planned"] == 2
    assert path.with_name(facts["profiler"][0]).is_file()
    assert double.read_text().endswith("nccl 1\n")


@pytest.mark.parametrize(("gpus", "device"), [("2", "cuda:0"), ("1", "cpu")])
def test_nccl_is_for_as_many_gpus_as_ranks(
    double: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, device: str
) -> None:
    """NCCL refuses two ranks on one GPU, and gloo cannot send what lies on one."""
    monkeypatch.setenv("DOUBLE_GPUS", gpus)
    before = double.read_text()
    task = {"task": "sweep_run", "parts": [], "seconds": 1.0}
    found = workers.run([task], 2, 1200.0)[0]
    assert [one["device"] for one in found] == ([device, "cuda:1"] if gpus == "2" else ["cpu"] * 2)
    assert double.read_text().removeprefix(before) == "nccl 2\n" * (2 if gpus == "2" else 0)


def test_a_machine_says_which_gpus_it_has(double: Path) -> None:
    found = machine.gpus()
    assert found["gpus"] == [{"name": "Double", "memory_bytes": 1 << 37, "sms": SMS}]
    assert found["nccl"] == "2.28.9"
