"""Matrix products of fp32 tensors in tf32: what changes, what does not, and how long they take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sim.builder.program import Kernel, Program
from sim.builder.stage import stage_programs
from sim.graph import Compute
from sim.machine import cluster
from sim.machine.kernels import compute_seconds, gemm_constants
from sim.recipe import recipe_file
from sim.recipe.legality.products import able
from sim.runs.check import check
from sim.runs.run import job_of, run
from tests.recipes import parsed

A100 = cluster.load("dgx_a100", 8).gpu
PRODUCTS = ("gemm", "grouped_gemm")
SMALL: dict[str, Any] = {"layers": 2, "sequence": 256}


def programs(preset: str, numbers: dict[str, Any], **training: Any) -> dict[str, Program]:
    """Of the first layer, the last one, and both ends of a model on one GPU."""
    model = {"preset": preset, "sequence": 256, **numbers}
    if preset == "resnet-50":
        del model["sequence"]
    training = {"micro_batch": 2, "dtype": "fp32", **training}
    job = job_of(parsed(model, 2, topology="dgx_a100", training=training))
    layers = range(job.model.layers) if job.model.resnet else (0, job.model.layers - 1)
    return stage_programs(job, layers, first=True, last=True)


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [
        ("gpt-22b", {"attention": "unfused"}),
        ("llama3-8b", {}),
        ("mixtral-8x7b", {"load": {"kind": "zipf", "s": 1.2}}),
        ("deepseek-v3", {}),
        ("resnet-50", {}),
    ],
)
def test_products_alone_change_their_numbers(preset: str, numbers: dict[str, Any]) -> None:
    """All of them, convolutions, routers and the head too; FLOPs, bytes and memory stay."""
    plain, fast = programs(preset, numbers), programs(preset, numbers, matmul="tf32")
    kinds = set[str]()
    for kind, items in fast.items():
        for item, before in zip(items, plain[kind], strict=True):
            assert isinstance(item, Kernel)
            assert isinstance(item.work, Compute)
            product = item.work.kind in PRODUCTS
            assert item.work.dtype == ("tf32" if product else "fp32")
            assert item._replace(work=item.work._replace(dtype="fp32")) == before
            kinds.add(item.work.kind)
    assert "gemm" in kinds
    assert ("grouped_gemm" in kinds) == (preset == "mixtral-8x7b")
    assert ("attention" in kinds) == (preset not in ("gpt-22b", "resnet-50"))


def square(side: int, dtype: str) -> float:
    size = 4.0 * 3 * side**2
    return max(compute_seconds(A100, Compute("gemm", 2.0 * side**3, size, (1, *[side] * 3), dtype)))


def test_a_product_takes_what_pytorch_says() -> None:
    """10240 x 10240 on an A100: 0.016 s with tf32 (PyTorch's notes on TensorFloat-32), one product
    of 16 ms: between boost clock and that of a long burst."""
    boost = square(10240, "tf32")
    assert 0.0145 < boost < 0.016 < boost * (1 + gemm_constants(A100, "bf16").derating)
    ratio = square(10240, "fp32") / square(10240, "tf32")
    assert ratio == pytest.approx(156 / 19.5, rel=1e-12)


@pytest.mark.parametrize("kind", ["attention", "attention_backward"])
def test_fused_attention_multiplies_thrice(kind: str) -> None:
    """Of fp32 with tf32 units three products make one, whatever matmul says; without, plain ones.

    156 / 3 of 312 TFLOP/s is a sixth of what bf16 has; 19.5 a sixteenth."""
    shape = (1, 8, 4096, 4096, 128)
    work = Compute(kind, 1e12, 1.0, shape, "fp32")
    bf16 = compute_seconds(A100, work._replace(dtype="bf16"))[0]
    assert compute_seconds(A100, work)[0] == pytest.approx(6 * bf16, rel=1e-12)
    old = SimpleNamespace(
        sms=A100.sms,
        memory_bandwidth=A100.memory_bandwidth,
        costs=A100.costs,
        peak={k: v for k, v in A100.peak.items() if k != "tf32"},
    )
    assert compute_seconds(old, work)[0] == pytest.approx(16 * bf16, rel=1e-12)


def recipe(**training: Any) -> recipe_file.Recipe:
    model, training = {"preset": "llama3-8b", **SMALL}, {"dtype": "fp32", **training}
    return parsed(model, 8, gpus=8, topology="dgx_a100", training=training)


def test_memory_and_traffic_stay() -> None:
    """Tensors lie in memory and travel as fp32; utilisation is of tf32's peak."""
    plain, fast = run(recipe()), run(recipe(matmul="tf32"))
    assert fast.summary["bytes_sent"] == plain.summary["bytes_sent"]
    peaks = [[of["peak_bytes"] for of in said["memory"]] for said in (plain.summary, fast.summary)]
    assert peaks[0] == peaks[1]
    assert [of["peak_bytes"] for of in check(fast.recipe)["memory"]] == pytest.approx(
        peaks[1], rel=1e-9
    )
    for result, peak in ((plain, 19.5), (fast, 156.0)):
        s = result.summary
        assert s["mfu"] == pytest.approx(s["tflops_per_gpu"] / peak, rel=1e-12)
    assert fast.summary["step_time_s"] < plain.summary["step_time_s"]


REFUSED = [
    ({"matmul": "tf32", "dtype": "bf16"},
     'training.matmul = "tf32" is for products of training.dtype = "fp32"'),
    ({"matmul": "bf16"}, "training.matmul = \"bf16\" must be 'tf32'"),
]  # fmt: skip


@pytest.mark.parametrize(("training", "sentence"), REFUSED)
def test_a_refusal_is_one_sentence(training: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe(**training)
    assert sentence in str(error.value)


def test_a_gpu_needs_the_peak() -> None:
    peak = {"fp32": 15.7e12, "fp16": 125e12}
    with pytest.raises(ValueError, match="needs a GPU with a tf32 peak, which topology"):
        able(recipe(matmul="tf32"), "v100", peak)
    able(recipe(), "v100", peak)


def test_llama_3_70b_in_fp32_of_case_12(shared: Path) -> None:
    """16 A100, attention unfused, as Megatron-LM runs it in fp32: 3.6 to 6 s, 19 to 32 TFLOP/s.

    With products of fp32 no more than 6 TFLOP/s would be possible, and 20 were measured.
    """
    case = shared.parent / "cases/reports/12-tf32/recipe.toml"
    fast = {"training.matmul": "tf32", "model.attention": "unfused"}
    said = run(case, fast).summary
    assert 3.6 < said["step_time_s"] < 6
    assert 19 < said["tflops_per_gpu"] < 32
    plain = run(case, {"model.attention": "unfused"}).summary
    assert plain["tflops_per_gpu"] < 6.1
