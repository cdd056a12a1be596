"""Linears in fp8: work, bytes, kernels and memory against sums worked out here."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import numpy as np
import pytest

from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.graph import Communication, Compute, Graph
from sim.machine import cluster as clusters
from sim.model.layer import layer
from sim.model.operators import Operator, Share, finished, gemm, linear
from sim.model.sizes import matrix_parameters, parameters
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import job_of, run
from sim.strategies.fp8.declare import Fp8Table
from sim.strategies.fp8.precision import Fp8
from sim.strategies.fp8.quantise import Quantised
from tests.recipes import built, parsed, tables
from tests.small import Keys, keys, small

H, FFN, S, VOCAB, LAYERS = 256, 768, 128, 512, 2
MODEL: dict[str, Any] = {
    "layers": LAYERS, "hidden": H, "heads": 8, "kv_heads": 4, "ffn": FFN, "vocab": VOCAB,
    "sequence": S, "attention": "flash", "position": "rope", "norm": "rms", "dropout": 0.0,
    "gated": True,
    "tied": False, "vocab_padding": 1,
}  # fmt: skip
MOE = MODEL | {"experts": 4, "topk": 2, "expert_ffn": 128, "shared_experts": 1}
LATENT = {"kv_lora_rank": 64, "q_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16}
MLA = MODEL | {"kv_heads": 8, "head_dim": 48, "mla": {**LATENT, "v_head_dim": 32}}
MODELS = {"dense": MODEL, "experts": MOE, "latent": MLA, "depth": MODEL | {"mtp": 1}}
QKV, OUT = (8 + 2 * 4) * 32 * H, H * H  # elements of matrices
MATRICES = QKV + OUT + 3 * H * FFN


def recipe(fp8: dict[str, Any] | None, model: dict[str, Any] = MODEL, **parallelism: Any) -> Any:
    return parsed(model, 8, training={} if fp8 is None else {"fp8": fp8}, **parallelism)


def graph(fp8: dict[str, Any] | None, model: dict[str, Any] = MODEL, **parallelism: Any) -> Graph:
    return built(recipe(fp8, model, **parallelism))


def kernels(of: Graph) -> Counter[str]:
    """How many ops there are of each name."""
    return Counter(of.names[k] for k in of.name.tolist())


def total(of: Graph, what: str, dtype: str = "") -> float:
    each = [
        getattr(w, what) if isinstance(w, Compute) and dtype in ("", w.dtype) else 0.0
        for w in of.works
    ]
    return float(np.array(each)[of.work].sum())


def traffic(of: Graph, collective: str, dimension: str) -> float:
    each = [
        w.bytes
        if isinstance(w, Communication) and (w.collective, w.dimension) == (collective, dimension)
        else 0.0
        for w in of.works
    ]
    return float(np.array(each)[of.work].sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", get_args(Fp8Table.model_fields["recipe"].annotation))
@pytest.mark.parametrize("model", MODELS)
def test_fp8_makes_and_loses_no_work(name: str, model: str) -> None:
    """What multiplies in fp8 is each matrix once forward and twice backward, for every token."""
    plain, fast = graph(None, MODELS[model]), graph({"recipe": name}, MODELS[model])
    assert total(fast, "flops") == pytest.approx(total(plain, "flops"), rel=1e-12)
    active = {
        "dense": LAYERS * MATRICES,
        "experts": LAYERS * (QKV + OUT + (2 + 1) * 3 * H * 128),
        "latent": LAYERS
        * (H * (128 + 64 + 16) + 128 * 8 * 48 + 64 * 8 * 64 + 8 * 32 * H + 3 * H * FFN),
        "depth": (LAYERS + 1) * MATRICES + 2 * H * H,
    }[model]
    assert total(fast, "flops", "fp8") == pytest.approx(6.0 * 8 * S * active, rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("split", [{}, {"tp": 2, "sp": True, "dp": 2}])
def test_matrices_are_what_the_gemms_multiply(model: str, split: dict[str, Any]) -> None:
    """The count that memory and gathers rest on is that of the weight gradients' elements."""
    job = job_of(recipe({}, MODELS[model], **split))
    s = job.parallelism
    program = stage_programs(job, range(LAYERS), first=True, last=True)["B"]
    made = 0
    for item in program:
        work = getattr(item, "work", None)
        if item.phase == "W" and isinstance(work, Compute) and work.dtype == "fp8":
            b, m, n, _ = np.array(work.shape).reshape(-1, 4).T
            made += int((b * m * n).sum())
    assert made == matrix_parameters(job.model, s.tp, range(LAYERS), True, s.ep, s.etp)
    assert made < parameters(job.model, s.tp, range(LAYERS), True, True, s.ep, s.etp).total


def test_kept_inputs_take_one_byte() -> None:
    """Of a layer's inputs of linears: h, attended, h and ffn wide; split over tp with sp."""
    model = recipe(None).architecture
    for tp, sp in ((1, False), (2, True)):
        setting = keys(tp, sp, 1, S)
        saved = []
        for fp8, scale in ((None, 0.0), (Fp8(), 0.0), (Fp8("mxfp8"), 1 / 32)):
            part = share_of(model, setting, fp8)
            kept = sum(op.saved for op in layer(model, part))
            saved.append(kept - scale * S * (3 * H + FFN) / tp)
        assert saved[0] - saved[1] == saved[0] - saved[2] == S * (3 * H + FFN) / tp


def share_of(model: Any, setting: Keys, fp8: Fp8 | None) -> Share:
    return share(small(model, setting | {"fp8": fp8}))


def test_a_step_has_these_casts() -> None:
    """Per layer and microbatch two inputs (a norm casts the others) and four gradients, and per
    step four weights; current scaling also casts what norms write, and finds every maximum."""
    delayed, current = (kernels(graph({"recipe": name})) for name in ("delayed", "tensorwise"))

    def count(of: Counter[str], end: str, weights: bool) -> int:
        return sum(n for k, n in of.items() if k.endswith(end) and ("weight" in k) == weights)

    assert count(delayed, "_quantise", weights=False) == LAYERS * 8 * (2 + 4)
    assert count(delayed, "_quantise", weights=True) == LAYERS * 4
    assert count(delayed, "_transpose", weights=False) == LAYERS * 8 * 2  # what norms have cast
    assert count(current, "_quantise", weights=False) == LAYERS * 8 * (4 + 4)
    assert count(current, "_amax", weights=False) == LAYERS * 8 * (4 + 4)
    assert count(current, "_amax", weights=True) == LAYERS * 4
    cast = kernels(graph({"recipe": "delayed", "params": True}))
    assert count(cast, "_quantise", weights=True) == 0
    assert count(cast, "_transpose", weights=True) == LAYERS * 4
    assert not count(kernels(graph({"params": True, "transpose": False})), "_transpose", True)


def test_a_weight_is_cast_once_whatever_multiplies_with_it() -> None:
    """Products cut into pieces use the same copy."""
    found = kernels(graph({"recipe": "delayed"}, tp=2, sp=True, tp_overlap=True))
    assert found["fc1"] == LAYERS * 8 * 2
    assert found["fc1_weight_quantise"] == found["fc2_weight_quantise"] == LAYERS


@pytest.mark.parametrize(
    ("fp8", "cast", "grad", "turned"),
    [
        (Fp8("delayed"), 4, 4, 0),  # 2 bytes read, 1 + 1 written
        (Fp8("delayed", transpose=False), 3, 3, 0),
        (Fp8("tensorwise"), 6, 6, 0),  # read once more
        (Fp8("blockwise"), 2 + 2 * (1 + 4 / 128), 2 + 2 * (1 + 4 / 128), 0),
        (Fp8("mxfp8", transpose=False), 2 + 2 * (1 + 1 / 32), 2 + 2 * (1 + 1 / 32), 0),
    ],
)
def test_traffic_of_the_casts(fp8: Fp8, cast: float, grad: float, turned: float) -> None:
    """Of one linear on one GPU, 5 inputs and 3 outputs wide, 7 tokens."""
    alone = Share(1, 7, 5, 7, 1, 1, 5, 5, 5, "bf16", 2, 4, linears=Quantised(fp8))
    (op,) = finished([linear(alone, "fc", 5, 3, "row")], alone)
    moved = {k.name: k.work.bytes for k in (*op.forward, *op.backward, *op.weight)}
    own = sum(size for name, size in moved.items() if name in ("fc_quantise", "fc_amax"))
    back = sum(size for name, size in moved.items() if name.startswith("fc_grad_"))
    assert (own, back) == (pytest.approx(cast * 35), pytest.approx(grad * 21))
    assert sum(size for name, size in moved.items() if "transpose" in name) == turned
    e = fp8.element
    assert moved["fc"] == pytest.approx(e * (7 * 5 + 5 * 3) + 2 * 21)
    assert moved["fc_wgrad"] == pytest.approx(e * (7 * 5 + 7 * 3) + 2 * 4 * 15)


def test_gathers_of_sequence_parallelism_carry_fp8_and_scatters_do_not() -> None:
    split = {"tp": 2, "sp": True}
    plain, fast = graph(None, **split), graph({"recipe": "delayed"}, **split)
    slow = graph({"recipe": "delayed", "gather": False}, **split)
    ends = 8 * 3 * 2 * S * H  # of the head's input, twice, and the embedding's gradient: 16 bits
    inner = traffic(plain, "all_gather", "tp") - ends
    assert traffic(fast, "all_gather", "tp") - ends == pytest.approx(inner / 2)
    assert traffic(slow, "all_gather", "tp") == traffic(plain, "all_gather", "tp")
    for other in (fast, slow):
        scattered = traffic(other, "reduce_scatter", "tp")
        assert scattered == traffic(plain, "reduce_scatter", "tp")
    blocks = graph({"recipe": "blockwise"}, **split)
    expected = inner * (1 + 4 / 128) / 2
    assert traffic(blocks, "all_gather", "tp") - ends == pytest.approx(expected)


@pytest.mark.parametrize(
    "sharded", [{"zero": 1}, {"zero": 3}, {"fsdp": {"kind": "fsdp2"}}], ids=str
)
def test_parameters_are_gathered_in_fp8(sharded: dict[str, Any]) -> None:
    """One byte less for each element of the layers' matrices, each time they are gathered."""
    plain, fast, mx = (
        graph(fp8, dp=2, **sharded)
        for fp8 in (None, {"params": True}, {"recipe": "mxfp8", "params": True})
    )
    times = 1 if sharded == {"zero": 1} else 2 * 4  # forward and backward of 4 microbatches
    gathered = traffic(plain, "all_gather", "dp")
    assert gathered - traffic(fast, "all_gather", "dp") == times * LAYERS * MATRICES
    assert traffic(mx, "all_gather", "dp") == gathered
    cached = graph({"recipe": "delayed"}, dp=2, **sharded)
    assert traffic(cached, "all_gather", "dp") == gathered


def test_sharded_weights_are_cast_where_they_are_gathered() -> None:
    found = kernels(graph({"recipe": "tensorwise"}, dp=2, fsdp={"kind": "fsdp2"}))
    cast = {name: n for name, n in found.items() if name.endswith("weight_quantise")}
    linears = ("qkv", "projection", "fc1", "fc2")
    assert cast == {f"{name}_weight_quantise": LAYERS * 4 * 2 for name in linears}


def test_maxima_are_reduced_after_every_forward_and_backward() -> None:
    split = {"tp": 2, "sp": True, "dp": 2, "pp": 2}

    def reduced(**table: Any) -> dict[tuple[str, int], int]:
        of = graph(table, **split)
        found = Counter[tuple[str, int]]()
        for k in of.work.tolist():
            work = of.works[k]
            if isinstance(work, Communication) and work.collective == "all_reduce":
                found[work.dimension, len(work.ranks)] += of.rank[0] >= 0
        return found

    ranks = len(graph({"recipe": "delayed"}, **split).ranks())
    assert reduced(recipe="delayed")["amax", 4] == ranks * 4 * 2  # 4 microbatches, both ways
    assert not any(axis == "amax" for axis, _ in reduced(recipe="delayed", amax="none"))
    none = reduced(recipe="delayed", amax="none")["tp", 2]
    assert reduced(recipe="delayed", amax="tp")["tp", 2] - none == ranks * 4 * 2
    # current scaling: of each gathered tensor, two inputs and two gradients of a layer
    assert reduced(recipe="tensorwise")["tp", 2] - none == ranks * 4 * 4


def test_weights_take_the_bytes_they_say() -> None:
    """bf16 ones and two copies, or fp8 ones with a transposed copy; other parameters stay."""
    held = LAYERS * (MATRICES + 2 * H) + H + 2 * VOCAB * H

    def weights(**table: Any) -> tuple[float, float]:
        (entry,) = check(recipe(table))["memory"]
        by = entry["by_category"]
        return by["weights"], by.get("fp8_weights", 0.0)

    m = LAYERS * MATRICES
    assert weights() == (2 * held, 2 * m)
    assert weights(transpose=False) == (2 * held, m)
    assert weights(params=True) == (2 * held - m, m)
    assert weights(params=True, transpose=False) == (2 * held - m, 0)
    assert weights(recipe="mxfp8") == (2 * held, 2 * m * (1 + 1 / 32))


def test_memory_of_the_timeline_is_that_of_the_check() -> None:
    of = recipe({"recipe": "delayed"}, dp=2, zero=1)
    (found,) = run(of).summary["memory"]
    (said,) = check(of)["memory"]
    assert found["peak_bytes"] == pytest.approx(said["peak_bytes"], rel=1e-12)


def test_utilisation_is_of_the_dtypes_peak() -> None:
    of = run(recipe({"recipe": "delayed"})).summary
    peak = clusters.load("dgx_h100", 1).gpu.peak["bf16"]
    assert of["mfu"] == pytest.approx(of["tflops_per_gpu"] * 1e12 / peak)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"cluster": {"topology": "dgx_a100", "gpus": 1}}, "needs a GPU with an fp8 peak"),
    ({"training": {"global_batch": 8, "dtype": "fp32", "fp8": {}}},
     'needs training.dtype = "bf16"'),
    ({"training": {"global_batch": 8, "fp8": {"attention": True}}}, "not simulated yet"),
    ({"training": {"global_batch": 8, "fp8": {"recipe": "mxfp8", "amax": "tp"}}}, "leave it out"),
    ({"training": {"global_batch": 8, "fp8": {"recipe": "nvfp4"}}}, "training.fp8.recipe"),
    ({"training": {"global_batch": 8, "fp8": {"param": True}}}, "did you mean training.fp8.params"),
    ({"model": MODEL | {"ffn": 1000}}, "model.ffn = 1000 is not a multiple of 16"),
    ({"model": {"preset": "resnet-50"}}, "not simulated with model.blocks"),
    ({"cluster": {"topology": "dgx_h100", "gpus": 2}, "parallelism": {"tp": 2, "sp": True,
     "tp_overlap": True}, "training": {"global_batch": 8, "fp8": {"gather": False}}},
     "not simulated with parallelism.tp_overlap"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=lambda of: str(of)[:40])
def test_a_refusal_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    plain = tables(MODEL, 8, training={"fp8": {}})
    for what in (run, check):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            what(recipe_file.parse(plain | change))
        assert sentence in str(error.value)


def test_nothing_changes_without_fp8() -> None:
    alone = Share(1, 7, 5, 7, 1, 1, 5, 5, 5, "bf16", 2, 4)
    ops: list[Operator] = [linear(alone, "fc", 5, 3, "row")]
    assert finished(ops, alone) == tuple(ops)
    assert gemm(alone, 1, 2, 3).dtype == "bf16"
