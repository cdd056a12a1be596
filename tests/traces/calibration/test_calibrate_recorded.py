"""Constants from a recording: those that a sweep was made from are found again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="calibration needs traincast[calibrate]")

from sim.builder.activations import layer_bytes
from sim.graph import Compute
from sim.machine import cluster
from traces.calibration import recorded
from traces.record import sweep_block, sweep_kernels

pytestmark = pytest.mark.slow

GPU = cluster.load("dgx_a100", 1).gpu


def row(work: Callable[[Any], Compute], **facts: Any) -> dict[str, Any]:
    """A measurement that took what the topology says."""
    facts["dtype"] = "bfloat16"
    return {**facts, "s": recorded.seconds(GPU, work(facts))}


def made() -> dict[str, Any]:
    """What a sweep on that very GPU would write."""
    widths = sweep_kernels.WIDTHS
    sizes = [(m, n, k) for m in (64, *sweep_kernels.TOKENS) for n in widths for k in widths]
    kinds = ("norm", "elementwise", "softmax", "embedding", "cross_entropy", "optimizer")
    shape = {**sweep_block.SIZES[0], "sequence": 2048, "micro_batch": 1, "dtype": "bfloat16"}
    block = {**shape, "F": 1.0, "B": 1.0, "I": 1.0, "W": 1.0}
    kept = layer_bytes(recorded.block(block))
    kernels = {
        "device": "cuda:0",
        "gpu": "A100",
        "gemm": [row(recorded.gemm, m=m, n=n, k=k) for m, n, k in sizes],
        "attention": [
            row(recorded.attention, what=what, batch=16384 // s, heads=16, sequence=s, dim=128,
                causal=True)
            for s in (512, 1024, 4096, 16384) for what in ("forward", "backward")
        ],
        "elementwise": [
            {"kind": kind, "name": kind, "bytes": 1 << 28,
             "s": recorded.seconds(GPU, Compute(kind, 0.0, 1 << 28))} for kind in kinds
        ],
        "launch": [{"what": "kernel", "s": GPU.costs["memory_kernels"]["fixed"]}],
        "memory": [{"way": "d2d", "bytes": 1 << 30, "s": 2 * 2**30 / GPU.memory_bandwidth}],
        "block": [{**block, "kept_bytes": kept, "allocated_bytes": kept + 7, "output_bytes": 7}],
    }  # fmt: skip
    return {"command": "c", "machine": {"torch": "2"}, "sections": {"kernels": kernels}}


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(made()))
    return path


def test_the_topology_that_a_sweep_was_made_from_has_no_errors(result: Path) -> None:
    some = recorded.errors(recorded.pairs(GPU, recorded.read(result)), "")
    errors = {error.family: error for error in some}
    for family, error in errors.items():
        if not family.startswith("block ") or "bytes" in family:
            assert error.max == 0.0, family
    assert errors["gemm bf16"].rows == 80
    assert errors["thin gemm bf16"].rows == 16
    assert errors["attention backward, causal, head dimension 128"].rows == 4


def test_constants_of_a_sweep_are_found_again(
    traincast: Callable[..., tuple[int, str, str]], result: Path
) -> None:
    code, out, said = traincast("calibrate", "a100", "--recorded", result, "--json")
    assert (code, said) == (0, "")
    found = json.loads(out)
    attention, memory = (found["constants"][key] for key in ("attention", "memory_kernels"))
    for name in ("forward", "backward", "keys"):
        assert attention[name] == pytest.approx(GPU.costs["attention"]["flash2"][name], rel=1e-3)
    for name in ("norm", "softmax", "optimizer", "fixed"):
        assert memory[name] == pytest.approx(GPU.costs["memory_kernels"][name], rel=1e-6)
    assert "c, A100, 2" in found["constants"]["gemm.bf16"]["source"]
    errors = {error["family"]: error["mean"] for error in found["errors"]}
    assert errors["gemm bf16"] < 0.01
    code, out, said = traincast("calibrate", "dgx_a100", "--recorded", result)
    assert "[gpu.gemm.bf16]" in out


def test_what_holds_no_kernels_of_a_gpu_is_one_sentence(
    traincast: Callable[..., tuple[int, str, str]], tmp_path: Path, result: Path
) -> None:
    path, content = tmp_path / "other.json", made()
    for change, sentence in (
        ({"device": "cpu"}, "was recorded on a CPU"),
        ({"gemm": [], "attention": [], "elementwise": []}, "has too few kernels"),
    ):
        content["sections"]["kernels"] |= change
        path.write_text(json.dumps(content))
        code, out, said = traincast("calibrate", "a100", "--recorded", path)
        assert (code, out) == (2, "")
        assert sentence in said
        content = made()
    path.write_text("{}")
    code, _, said = traincast("calibrate", "a100", "--recorded", path)
    assert code == 2
    assert "has no measured kernels: it lacks 'device'; give the result.json" in said
    code, _, said = traincast("calibrate", "a100", "--recorded", result, "--write")
    assert code == 2
    assert "--write takes public tables only" in said
