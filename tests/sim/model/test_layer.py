"""The kernels of a layer: a layer worked by hand, a recorded Megatron run, the formulas' FLOPs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sim.builder.program import Item, Kernel
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.model.layer import layer
from sim.model.sizes import Model, attention_flops, layer_flops, model_flops
from tests.small import GPT, Keys, keys, small

TINY = replace(
    GPT, name="tiny", layers=1, hidden=8, heads=2, kv_heads=2, head_dim=4, ffn=24, vocab=40,
    vocab_padding=4, positions=16,
)  # fmt: skip
LLAMA = replace(
    TINY, kv_heads=1, gated=True, norm="rms", attention="flash", activation="silu", qkv_bias=False,
    bias=False, position="rope", dropout=0.0,
)  # fmt: skip
ONE = keys(tp=1, sp=False, micro_batch=3, sequence=5)  # 15 rows


def kernels(items: Iterable[Item]) -> Iterator[Kernel]:
    return (item for item in items if isinstance(item, Kernel))


def flops(items: Iterable[Item]) -> float:
    return sum(kernel.work.flops for kernel in kernels(items))


def test_forward_of_a_tiny_layer() -> None:
    """Three sequences of 5 tokens: x = 15 · 8 elements are 240 bytes; 6 squares of 25 are 300."""
    program = stage_programs(small(TINY, ONE), [0], first=False, last=False)["F"]
    assert [(k.name, k.work.kind, k.work.bytes, k.work.shape) for k in kernels(program)] == [
        ("attention_norm", "norm", 240 + 240, ()),
        ("qkv", "gemm", 2 * (15 * 8 + 8 * 24 + 15 * 24), (1, 15, 24, 8)),
        ("qkv_bias", "elementwise", 720 + 720, ()),
        ("scores", "gemm", 6 * 2 * (20 + 20 + 25), (6, 5, 5, 4)),
        ("softmax", "softmax", 300 + 300, ()),
        ("attention_dropout", "elementwise", 300 + 300 + 150, ()),  # and one byte of mask each
        ("context", "gemm", 6 * 2 * (25 + 20 + 20), (6, 5, 4, 5)),
        ("context_layout", "elementwise", 240 + 240, ()),
        ("projection", "gemm", 2 * (15 * 8 + 8 * 8 + 15 * 8), (1, 15, 8, 8)),
        ("attention_residual", "elementwise", 3 * 240 + 120, ()),
        ("mlp_norm", "norm", 240 + 240, ()),
        ("fc1", "gemm", 2 * (15 * 8 + 8 * 24 + 15 * 24), (1, 15, 24, 8)),
        ("gelu", "elementwise", 720 + 720, ()),  # bias fused
        ("fc2", "gemm", 2 * (15 * 24 + 24 * 8 + 15 * 8), (1, 15, 8, 24)),
        ("mlp_residual", "elementwise", 3 * 240 + 120, ()),
    ]
    assert sum(k.work.flops for k in kernels(program) if k.name == "fc2") == 2 * 15 * 8 * 24


def test_backward_of_a_tiny_gated_layer() -> None:
    """Per linear the input's gradient, then the weight's, which reads and writes fp32 sums."""
    program = stage_programs(small(LLAMA, ONE), [0], first=False, last=False)["B"]
    x, wide = 240, 15 * 24 * 2  # bytes of 15 rows of 8, and of 24
    assert [(k.name, k.phase, k.work.bytes, k.work.shape) for k in kernels(program)] == [
        ("fc2_dgrad", "I", 2 * (15 * 8 + 8 * 24 + 15 * 24), (1, 15, 24, 8)),
        ("fc2_wgrad", "W", 2 * (15 * 8 + 15 * 24) + 8 * 8 * 24, (1, 8, 24, 15)),
        ("silu_backward", "I", wide + 2 * wide + 2 * wide, ()),
        ("fc1_dgrad", "I", 2 * (15 * 48 + 48 * 8 + 15 * 8), (1, 15, 8, 48)),
        ("fc1_wgrad", "W", 2 * (15 * 48 + 15 * 8) + 8 * 48 * 8, (1, 48, 8, 15)),
        ("mlp_norm_backward", "I", 3 * x, ()),
        ("mlp_norm_grad_add", "I", 3 * x, ()),
        ("projection_dgrad", "I", 2 * (15 * 8 + 8 * 8 + 15 * 8), (1, 15, 8, 8)),
        ("projection_wgrad", "W", 2 * (15 * 8 + 15 * 8) + 8 * 8 * 8, (1, 8, 8, 15)),
        # q, o and both gradients; k, v (half as wide) and both gradients; statistics
        ("attention_backward", "I", 4 * x + 4 * x / 2 + 15 * 2 * 4, (3, 2, 5, 5, 4)),
        ("rotary_backward", "I", 2 * (x + x / 2), ()),
        ("qkv_dgrad", "I", 2 * (15 * 16 + 16 * 8 + 15 * 8), (1, 15, 8, 16)),
        ("qkv_wgrad", "W", 2 * (15 * 16 + 15 * 8) + 8 * 16 * 8, (1, 16, 8, 15)),
        ("attention_norm_backward", "I", 3 * x, ()),
        ("attention_norm_grad_add", "I", 3 * x, ()),
    ]


def test_fp16_main_gradients_move_half_the_bytes() -> None:
    halved = ONE | {"grad_dtype": "fp16"}
    whole, half = (stage_programs(small(TINY, s), [0], False, False)["W"] for s in (ONE, halved))
    saved = sum(k.work.bytes for k in kernels(whole)) - sum(k.work.bytes for k in kernels(half))
    assert saved == (2 * 4 - 2 * 2) * (24 * 8 + 8 * 8 + 24 * 8 + 24 * 8)


@pytest.mark.parametrize("model", [TINY, replace(LLAMA, attention="unfused")])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_flops_are_those_of_the_formula(model: Model, recompute: str) -> None:
    """Backward is exactly twice forward; recomputation adds its share to phase R."""
    setting = ONE | {"recompute": recompute}
    programs = stage_programs(small(model, setting), [0], first=True, last=True)
    total = flops(programs["F"]) + flops(programs["B"])
    again = flops(item for item in programs["B"] if item.phase == "R")
    assert total - again == model_flops(model, batch=3, sequence=5)
    assert flops(programs["B"]) - again == 2 * flops(programs["F"])
    expected = {"none": 0, "selective": attention_flops(model, 3, 5)}
    assert again == expected.get(recompute, layer_flops(model, 3, 5))


@pytest.mark.parametrize("setting", [ONE, ONE | {"recompute": "full"}])
def test_backward_is_its_two_halves(setting: Keys) -> None:
    programs = stage_programs(small(TINY, setting), [0], first=True, last=True)
    split = [*programs["I"], *programs["W"]]
    assert sorted((i.name, i.phase) for i in split) == sorted(
        (i.name, i.phase) for i in programs["B"]
    )
    assert {i.phase for i in programs["I"]} <= {"R", "I"}
    assert {i.phase for i in programs["W"]} == {"W"}


def test_flash_attention_runs_half_the_square_and_backward_two_and_a_half_times_that() -> None:
    programs = stage_programs(small(LLAMA, ONE), [0], first=False, last=False)
    forward, backward = (
        sum(k.work.flops for k in kernels(programs[p]) if k.work.kind.startswith("attention"))
        for p in "FB"
    )
    assert forward == 4 * 3 * 2 * 5 * 5 * 4 / 2
    assert backward == 2.5 * forward


def test_grouped_keys_and_values_are_copied_only_without_flash() -> None:
    unfused = {
        op.name for op in layer(replace(LLAMA, attention="unfused"), share(small(LLAMA, ONE)))
    }
    assert "repeat_kv" in unfused
    assert "repeat_kv" not in {op.name for op in layer(LLAMA, share(small(LLAMA, ONE)))}


KINDS = {  # part of a recorded kernel's name: its kind
    "nccl": "all_reduce",
    "LayerNorm": "norm",
    "gemm": "gemm",
    "softmax": "softmax",
    "triton": "elementwise",  # bias and GeLU; bias and residual
    "elementwise": "elementwise",
}
LOSS = {  # likewise of the kernels over all logits: ours
    "nccl": "all_reduce",
    "BinaryFunctor": "loss_softmax",
    "CUDAFunctor_add": "loss_subtract",
    "exp_kernel": "loss_exp",
    "MaxOps": "loss_max",
    "sum_functor": "loss_sum",
    "unrolled_elementwise": "loss_to_fp32",
    "direct_copy": "loss_layout",
}


def test_forward_is_what_megatron_ran(shared: Path) -> None:
    """Every kernel of 40 layers, head and loss in the order of a recorded GPT on 8 A100.

    Of the loss only kernels over all logits (0.1 ms and more) are compared, not those over one
    number per token.
    """
    with gzip.open(shared / "kineto/megatron_gpt_tp8_a100/megatron_kineto_0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    ran = sorted((e["ts"], e["dur"], e["name"]) for e in events if e.get("cat") == "kernel")
    recorded = [next((k for part, k in KINDS.items() if part in row[2]), "") for row in ran]
    model = replace(
        TINY, layers=40, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=16384, vocab=51200,
        dropout=0.0,
    )  # fmt: skip
    setting = keys(tp=8, sp=False, micro_batch=4, sequence=2048, dtype="fp16")
    program = stage_programs(small(model, setting), range(40), first=True, last=True)["F"]
    ours = [i.work.kind if isinstance(i, Kernel) else i.collective for i in program]
    head = [i.name for i in program].index("head")
    begin, first, count = recorded.index("norm"), ours.index("norm"), 40 * 16 + 2
    assert head == first + count - 1
    assert ours[first : head + 1] == recorded[begin : begin + count]

    loss = [i.name if isinstance(i, Kernel) else i.collective for i in program[head + 1 :]]
    rest = [name for _, us, name in ran[begin + count :] if us > 100 or "nccl" in name]
    assert loss == [next(k for part, k in LOSS.items() if part in name) for name in rest]
