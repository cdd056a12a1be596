"""Multi-head latent attention: its kernels, bytes and activations by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.analysis.traffic import SENT
from sim.builder.activations import layer_bytes
from sim.builder.program import Collective, Kernel
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.graph import Compute
from sim.machine.kernels import compute_seconds
from sim.model.layer import layer
from sim.model.sizes import Mla, Model, attention_flops, layer_flops
from tests.small import LLAMA, Keys, keys, rerun, small

MLA = Mla(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10)
MODEL = replace(
    LLAMA, name="latent", layers=1, kv_heads=8, head_dim=12, ffn=112, vocab=128, mla=MLA,
)  # fmt: skip
ONE = keys(tp=1, sp=False, micro_batch=2, sequence=32)
T = 64


def kernels(setting: Keys, kind: str, model: Model = MODEL) -> dict[str, Compute]:
    items = stage_programs(small(model, setting), [0], False, False)[kind]
    return {i.name: i.work for i in items if isinstance(i, Kernel) and isinstance(i.work, Compute)}


def test_forward_by_hand() -> None:
    """Queries 8 heads of 12, keys of 12 (8 and the common 4), values of 10; 64 rows of 2 bytes."""
    works = kernels(ONE, "F")
    names = list(works)
    assert names[: names.index("attention_residual")] == [
        "attention_norm", "q_down", "q_norm", "q_up", "kv_down", "kv_norm", "kv_up", "rotary",
        "attention", "projection",
    ]  # fmt: skip
    shapes = {name: work.shape for name, work in works.items()}
    assert shapes["q_down"] == (1, T, 24, 64)
    assert shapes["q_up"] == (1, T, 8 * 12, 24)
    assert shapes["kv_down"] == (1, T, 16 + 4, 64)
    assert shapes["kv_up"] == (1, T, 8 * (8 + 10), 16)
    assert shapes["projection"] == (1, T, 64, 8 * 10)
    assert works["q_norm"].bytes == 2 * T * 24 * 2
    q = k = T * 8 * 12 * 2
    assert works["rotary"].bytes == 2 * q + T * (8 * 8 + 4) * 2 + k
    assert works["attention"].bytes == q + k + 2 * T * 8 * 10 * 2 + 4 * T * 8
    assert works["attention"].flops == 2 * 2 * 8 * 32 * 32 * (12 + 10) / 2
    assert sum(w.flops for w in works.values()) == (
        layer_flops(MODEL, 2, 32) - attention_flops(MODEL, 2, 32) / 2
    )


def test_backward_of_the_core_is_three_wide_products_and_two_narrow_ones() -> None:
    """Scores again, gradients of queries and of keys; of the weights and of values."""
    backward = kernels(ONE, "B")["attention_backward"]
    assert backward.flops == 2 * 2 * 8 * 32 * 32 * (3 * 12 + 2 * 10) / 2


UNFUSED = replace(MODEL, attention="unfused", dropout=0.1)


def test_the_unfused_core_by_hand() -> None:
    """Scores of keys of 12 and weighted values of 10 over the whole square, for 2 x 8 heads.

    What the square keeps: the softmax's output, and of the dropout a byte each and its output.
    """
    forward, backward = (kernels(ONE, kind, UNFUSED) for kind in "FB")
    names = list(forward)
    core = names[names.index("rotary") + 1 : names.index("projection")]
    assert core == ["scores", "softmax", "attention_dropout", "context", "context_layout"]
    shapes = {name: work.shape for name, work in (forward | backward).items()}
    assert shapes["scores"] == (*shapes["context_weight_grad"][:3], 12) == (16, 32, 32, 12)
    assert shapes["context_weight_grad"] == (16, 32, 32, 10)
    assert shapes["context"] == shapes["context_value_grad"] == (16, 32, 10, 32)
    assert shapes["scores_query_grad"] == shapes["scores_key_grad"] == (16, 32, 12, 32)
    assert sum(w.flops for w in forward.values()) == layer_flops(UNFUSED, 2, 32)
    statistics, masks = 4 * 8 * T, 2 * T * 64  # a byte for every element of both residuals
    square = 16 * 32 * 32
    more = layer_bytes(small(UNFUSED, ONE)) - layer_bytes(small(MODEL, ONE))
    assert more == square * (2 + 1 + 2) + masks - statistics


@pytest.mark.parametrize("modules", [("core_attn",), ("mla_up_proj",)])
def test_what_runs_again_of_the_unfused_core(modules: tuple[str, ...]) -> None:
    """The square, before its backward; or queries, keys and values, which it all needs."""
    setting = ONE | {"recompute": rerun(modules)}
    again = [i.name for i in stage_programs(small(UNFUSED, setting), [0], False, False)["B"]]
    if modules == ("core_attn",):
        first = again.index("scores")
        assert again[first : first + 3] == ["scores", "softmax", "attention_dropout"]
        assert first < again.index("context_weight_grad")
    else:
        assert again.index("rotary") < again.index("context_weight_grad")
        assert "scores" not in again
    kept = layer_bytes(small(UNFUSED, ONE)) - layer_bytes(small(UNFUSED, setting))
    assert kept == (16 * 32 * 32 * 5 if "core_attn" in modules else T * 2 * 8 * 34 + T * 2 * 40)


def test_queries_need_no_latent() -> None:
    model = replace(MODEL, mla=MLA._replace(q_lora_rank=0))
    works = kernels(ONE, "F", model)
    assert works["q"].shape == (1, T, 8 * 12, 64)
    assert not {"q_down", "q_up", "q_norm"} & works.keys()
    assert layer_bytes(small(MODEL, ONE)) - layer_bytes(small(model, ONE)) == 2 * T * 2 * 24


def test_equal_widths_are_plain_attention() -> None:
    """Without latents in its way the core is flash attention's, whose one width it then has."""
    same = replace(MODEL, mla=Mla(24, 16, 8, 4, 12))
    plain = replace(MODEL, mla=None)
    for kind, name in (("F", "attention"), ("B", "attention_backward")):
        assert kernels(ONE, kind, same)[name] == kernels(ONE, kind, plain)[name]
    assert attention_flops(same, 2, 32) == attention_flops(plain, 2, 32)


def test_activations_by_hand() -> None:
    """Both norms' inputs and outputs, latents before and after their norms, queries, keys, values,
    statistics and the core's output; then the MLP's."""
    latents = 2 * 24 + 2 * 16
    heads = 8 * (12 + 12 + 10) + 8 * 10
    per_token = 2 * (4 * 64 + latents + heads + 3 * 112) + 4 * 8
    assert layer_bytes(small(MODEL, ONE)) == T * per_token


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallel_ranks_gather_latents(tp: int) -> None:
    """Forward 24 and 16 + 4 columns for attention and 64 for the MLP, two scatters of 64."""
    setting = ONE | {"tp": tp, "sp": True}
    items = stage_programs(small(MODEL, setting), [0], False, False)["F"]
    found = [(i.name, i.bytes) for i in items if isinstance(i, Collective)]
    assert found == [
        ("q_up_all_gather", T * 24 * 2),
        ("kv_up_all_gather", T * (16 + 4) * 2),
        ("projection_reduce_scatter", T * 64 * 2),
        ("fc1_all_gather", T * 64 * 2),
        ("fc2_reduce_scatter", T * 64 * 2),
    ]
    assert kernels(setting, "F")["q_down"].shape == (1, T // tp, 24, 64)
    sent = sum(SENT[i.collective](i.bytes, tp) for i in items if isinstance(i, Collective))
    assert sent == T * 2 * (24 + 20 + 3 * 64) * (tp - 1) / tp


def test_tensor_parallel_ranks_reduce_gradients_of_latents() -> None:
    setting = ONE | {"tp": 2}
    items = stage_programs(small(MODEL, setting), [0], False, False)["B"]
    found = [i.name for i in items if isinstance(i, Collective)]
    assert found == ["fc1_grad_all_reduce", "kv_up_grad_all_reduce", "q_up_grad_all_reduce"]
    assert kernels(setting, "F")["q_down"].shape == (1, T, 24, 64)  # no rank has less of it


def test_a_core_of_two_widths_is_priced_between_them() -> None:
    """DeepSeek-V3's 192 and 128: dearer than one width of 128, cheaper than one of 192."""
    from sim.machine.cluster import load

    gpu = load("dgx_h100", 8).gpu
    setting = keys(tp=1, sp=False, micro_batch=1, sequence=4096)

    def seconds(qk: int, v: int, kind: str, name: str) -> float:
        model = replace(MODEL, heads=128, kv_heads=128, mla=Mla(24, 16, qk - 64, 64, v))
        return max(compute_seconds(gpu, kernels(setting, kind, model)[name])[:2])

    for kind, name in (("F", "attention"), ("B", "attention_backward")):
        assert seconds(128, 128, kind, name) < seconds(192, 128, kind, name)
        assert seconds(192, 128, kind, name) < seconds(192, 192, kind, name)


def test_only_heads_are_split() -> None:
    part = share(small(MODEL, ONE | {"tp": 4}))
    assert [op.name for op in layer(MODEL, part)] == [
        op.name for op in layer(MODEL, share(small(MODEL, ONE)))
    ]
    assert kernels(ONE | {"tp": 4}, "F")["kv_up"].shape == (1, T, 2 * 18, 16)
