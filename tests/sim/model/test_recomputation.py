"""Partial recomputation: bytes that each choice saves, what runs again, when, in which layers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import Any, get_args

import pytest

from sim.builder.activations import layer_bytes, stage_bytes
from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.stage import stage_programs
from sim.graph import Compute
from sim.model.sizes import Mla, Model, attention_flops
from sim.strategies.recompute import rule
from sim.strategies.recompute.declare import Module, RecomputeTable
from sim.strategies.recompute.rule import chosen
from tests import small as small_models
from tests.small import keys, rerun, small

B, S, H, A, FFN, VOCAB = 3, 32, 64, 4, 96, 128
T = B * S
LLAMA = replace(small_models.LLAMA, layers=6, heads=A, head_dim=16, ffn=FFN, vocab=VOCAB)
LATENT = Mla(24, 12, 8, 4, 20)  # widths of queries' and keys' latents, heads 12 and 20
EXPERTS, TOPK, WIDTH = 8, 2, 40
MOE: dict[str, Any] = {"experts": EXPERTS, "topk": TOPK, "expert_ffn": WIDTH, "shared_experts": 1}
DEEPSEEK = replace(LLAMA, kv_heads=A, head_dim=0, mla=LATENT, dense_layers=1, **MOE)
ONE = keys(1, False, B, S)
KV, HEADS = 2 * 16, A * 16

FORMS = [
    *(rerun((name,)) for name in get_args(Module)),
    rerun(("layernorm", "mla_up_proj", "moe_act", "mlp")),
    rerun(("layernorm", "moe", "core_attn", "norm", "shared_experts", "moe_act")),
    rerun(every=2),
    rerun(("mlp", "norm"), every=3),
    rerun(fraction=0.4),
    rerun(method="block", layers=2),
    rerun(method="uniform", layers=2),
    rerun(method="uniform", layers=4),
]
PER_OPERATOR = rerun(("op",))


def programs(model: Model, said: str | RecomputeTable, **changes: object) -> dict[str, Program]:
    setting = ONE | {"recompute": said, **changes}  # type: ignore[arg-type]
    return stage_programs(small(model, setting), range(model.layers), first=True, last=True)


def flops(items: Program, phase: str) -> float:
    works = [item.work for item in items if isinstance(item, Kernel) and item.phase == phase]
    return sum(work.flops for work in works if isinstance(work, Compute))


def saved(model: Model, said: RecomputeTable, number: int) -> float:
    """Bytes that one layer keeps less than without recomputation."""
    kept = layer_bytes(small(model, ONE | {"recompute": said}), number)
    return layer_bytes(small(model, ONE), number) - kept


DENSE_BYTES = {  # 2 bytes a number: what each module of a Llama layer no longer keeps
    "core_attn": 4 * T * A,  # statistics of the softmax, fp32
    "layernorm": 0,  # fused into linears, as Transformer Engine has them
    "norm": 2 * 2 * T * H,
    "mlp": 2 * T * (H + 3 * FFN),
    "mlp_act": 2 * T * FFN,
}
QK, V = 12, 20
MOE_BYTES = {
    "core_attn": 4 * T * A,
    "layernorm": 2 * 2 * T * H,  # before attention and before the experts
    "norm": 2 * 2 * T * H,
    "mla_up_proj": 2 * T * (A * (2 * QK + V) + LATENT.q_lora_rank + LATENT.kv_lora_rank),
    "mlp": 0,
    "mlp_act": 0,
    "moe": T * EXPERTS * 5 + 2 * T * TOPK * (H + 3 * WIDTH) + 2 * T * 3 * WIDTH,
    "moe_act": 2 * T * TOPK * WIDTH,
    "shared_experts": 2 * T * 3 * WIDTH,
}


@pytest.mark.parametrize("name", DENSE_BYTES)
def test_bytes_that_a_module_of_a_dense_layer_saves(name: str) -> None:
    assert saved(LLAMA, rerun((name,)), 0) == DENSE_BYTES[name]


@pytest.mark.parametrize("name", MOE_BYTES)
def test_bytes_that_a_module_of_a_layer_with_experts_saves(name: str) -> None:
    assert saved(DEEPSEEK, rerun((name,)), 3) == MOE_BYTES[name]


def test_a_dense_layer_of_a_mixture_has_its_own_norm_and_mlp() -> None:
    """The first layer: its attention's norm stands alone, that of its MLP is fused."""
    assert saved(DEEPSEEK, rerun(("layernorm",)), 0) == 2 * T * H
    assert saved(DEEPSEEK, rerun(("mlp", "moe")), 0) == 2 * T * (H + 3 * FFN)


def test_modules_together_save_what_each_saves_once() -> None:
    names = ("core_attn", "layernorm", "mla_up_proj", "moe_act", "shared_experts")
    assert saved(DEEPSEEK, rerun(names), 3) == sum(MOE_BYTES[name] for name in names)
    inside = rerun(("moe_act", "moe", "shared_experts"))
    assert saved(DEEPSEEK, inside, 3) == MOE_BYTES["moe"]
    both = rerun(("norm", "mlp"))
    assert saved(LLAMA, both, 0) == 2 * T * H + DENSE_BYTES["mlp"]  # the norm is in the MLP


@pytest.mark.parametrize("sp", [False, True])
def test_bytes_that_the_per_operator_policy_keeps(sp: bool) -> None:
    """The layer's input, q, v, attention's output and statistics, the gate, what is scattered."""
    t = 2 if sp else 1
    setting = ONE | {"tp": t, "sp": sp, "recompute": PER_OPERATOR}
    numbers = HEADS + KV + HEADS + FFN
    expected = 2 * T * H / t * (1 + sp) + 2 * T * numbers / t + 4 * T * A / t
    assert layer_bytes(small(LLAMA, setting)) == expected


@pytest.mark.parametrize("said", [*FORMS, PER_OPERATOR], ids=str)
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=["dense", "moe"])
def test_flops_that_run_again_are_those_of_the_formula(model: Model, said: RecomputeTable) -> None:
    if model is DEEPSEEK and said == PER_OPERATOR:
        return
    ran = flops(programs(model, said)["B"], "R")
    formula = rule.flops(model, B, S, said)
    core = said.modules is None or "core_attn" in said.modules
    halved = attention_flops(model, B, S) / 2 * sum(chosen(said, model.layers)) * core
    assert ran == pytest.approx(formula - halved, rel=1e-14)  # the kernel skips what is masked


@pytest.mark.parametrize("said", [*FORMS, PER_OPERATOR], ids=str)
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=["dense", "moe"])
@pytest.mark.parametrize("tp", [1, 2])
def test_what_is_rebuilt_goes_again(model: Model, said: RecomputeTable, tp: int) -> None:
    """In whole and in halved backwards; and never is more freed than was there."""
    if model is DEEPSEEK and said == PER_OPERATOR:
        return
    made = programs(model, said, tp=tp, sp=tp > 1)
    for kinds in ("FB", "FIW"):
        items = [item for kind in kinds for item in made[kind]]
        for category in ("activations", "recompute"):
            changes = [m.bytes for item in items for m in item.memory if m.category == category]
            held = list(accumulate(changes))
            assert not held or (abs(held[-1]) < 1e-6 and min(held) > -1e-6)


def test_rebuilt_bytes_are_those_that_are_not_kept() -> None:
    """Of layers that run again one after the other, the sum of all that comes back."""
    for said in (
        rerun(every=2),
        rerun(method="uniform", layers=4),
        rerun(("mla_up_proj", "moe_act")),
    ):
        back = programs(DEEPSEEK, said)["B"]
        changes = [m.bytes for i in back for m in i.memory if m.category == "recompute"]
        came = sum(size for size in changes if size > 0)
        layers = range(DEEPSEEK.layers)
        kept = [
            stage_bytes(small(DEEPSEEK, ONE | {"recompute": of}), layers, False, False)[
                "activations"
            ]
            for of in ("none", said)
        ]
        assert came == pytest.approx(kept[0] - kept[1])


def test_without_modules_and_with_all_layers_it_is_what_the_words_say() -> None:
    for model in (LLAMA, DEEPSEEK):
        assert programs(model, rerun(())) == programs(model, "none")
        assert programs(model, rerun(("core_attn",))) == programs(model, "selective")
        full = programs(model, "full")
        whole = (
            rerun(fraction=1.0),
            rerun(method="block", layers=6),
            rerun(method="uniform", layers=1),
        )
        assert all(programs(model, said) == full for said in whole)
        assert programs(model, rerun(fraction=0.0)) == programs(model, "none")


def layers_again(said: RecomputeTable) -> list[int]:
    """The layers that run something again, in order of the backward."""
    numbers = [item.layer for item in programs(LLAMA, said)["B"] if item.phase == "R"]
    return list(dict.fromkeys(numbers))


def test_layers_are_chosen_by_their_place() -> None:
    """torchtitan's every n-th, Megatron-LM's block, fms-fsdp's fraction (halves up: 1 3 5 of 6)."""
    assert layers_again(rerun(every=2)) == [5, 3, 1]
    assert layers_again(rerun(every=4)) == [3]
    assert layers_again(rerun(method="block", layers=2)) == [1, 0]
    assert layers_again(rerun(fraction=0.5)) == [4, 2, 0]
    assert layers_again(rerun(fraction=1 / 3)) == [4, 1]


def test_uniform_groups_run_again_as_one_from_one_input() -> None:
    """Four layers and then two; each group's forward stands before its last layer's backward."""
    said = rerun(method="uniform", layers=4)
    runs: list[tuple[str, int]] = []
    for item in programs(LLAMA, said)["B"]:
        step = ("R" if item.phase == "R" else "B", item.layer)
        if item.layer >= 0 and (not runs or runs[-1] != step):
            runs.append(step)
    upper = [("R", 4), ("R", 5), ("B", 5), ("B", 4)]
    lower = [*(("R", i) for i in range(4)), *(("B", i) for i in reversed(range(4)))]
    assert runs == upper + lower
    setting = ONE | {"recompute": said}
    assert stage_bytes(small(LLAMA, setting), range(6), False, False) == {
        "activations": 2 * 2 * T * H
    }


def before(items: Program, name: str, layer: int) -> list[str]:
    """Names of what runs again right before a kernel."""
    at = next(
        i
        for i, item in enumerate(items)
        if (item.name, item.layer, item.phase) == (name, layer, "I")
    )
    out: list[str] = []
    while at and items[at - 1].phase == "R":
        at -= 1
        out.insert(0, items[at].name)
    return out


def test_discarded_outputs_are_made_again_when_their_users_gradient_comes() -> None:
    """Each right before the backward of what follows it (CheckpointWithoutOutput's hooks)."""
    said = rerun(("layernorm", "mla_up_proj", "moe_act"))
    items = programs(DEEPSEEK, said)["B"]
    assert before(items, "projection_dgrad", 3) == ["attention_norm"]
    latent = ["q_norm", "q_up", "kv_norm", "kv_up", "rotary"]
    assert before(items, "attention_backward", 3) == latent
    assert before(items, "expert_fc2_dgrad", 3) == ["expert_silu"]
    again = Counter(item.name for item in items if item.phase == "R" and item.layer == 3)
    assert again == Counter([*latent, "attention_norm", "mlp_norm", "expert_silu"])


def test_a_checkpointed_module_runs_and_communicates_again() -> None:
    """The MLP's gather and scatter over tp; the experts' exchanges both ways."""
    items = programs(LLAMA, rerun(("mlp",)), tp=2, sp=True)["B"]
    assert collectives(items) == Counter(all_gather=6, reduce_scatter=6)
    assert before(items, "fc2_dgrad", 2) == []  # its gradient is gathered in between
    items = programs(DEEPSEEK, rerun(("moe",)), ep=2)["B"]
    assert collectives(items) == Counter(all_to_all=2 * 5)
    items = programs(LLAMA, PER_OPERATOR, tp=2, sp=True)["B"]
    assert collectives(items) == Counter(all_gather=2 * 6)  # what is scattered has been saved


def collectives(items: Program) -> Counter[str]:
    def again(item: Item) -> bool:
        return isinstance(item, Collective) and item.phase == "R"

    return Counter(item.collective for item in items if again(item))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "bytes_each"),
    [
        ("core_attn", 0),
        ("norm", 2 * 2 * T * H),  # inputs of linears
        ("mla_up_proj", 2 * T * (LATENT.q_lora_rank + LATENT.kv_lora_rank)),
    ],
)
def test_what_weight_gradients_need_stays_until_they_come(name: str, bytes_each: int) -> None:
    """After a backward of input gradients alone, of every layer."""
    items = programs(DEEPSEEK, rerun((name,)))["I"]
    held = sum(m.bytes for item in items for m in item.memory if m.category == "recompute")
    assert held == bytes_each * DEEPSEEK.layers
