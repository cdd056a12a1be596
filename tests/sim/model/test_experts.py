"""Layers with experts: kernels, bytes, parameters and activations against formulas and by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sim.analysis.traffic import SENT
from sim.builder.activations import layer_bytes, stage_bytes
from sim.builder.program import Collective, Item, Kernel
from sim.builder.shares import edges, share
from sim.builder.stage import stage_programs
from sim.builder.strategies.data import buckets
from sim.graph import Compute
from sim.model.kernel_choice import Kernels
from sim.model.layer import layer
from sim.model.routing import ExpertLoad, tokens
from sim.model.sizes import (
    Mla,
    Model,
    active_parameters,
    attention_flops,
    layer_flops,
    model_flops,
    parameters,
    total_parameters,
)
from sim.strategies.fp8.precision import Fp8
from sim.strategies.recompute import rule
from sim.strategies.recompute.declare import WORDS
from sim.strategies.tensor.sequence import replicated_gradient_bytes
from tests.small import LLAMA, keys, replicas, small

MIXTRAL = replace(
    LLAMA, name="mixtral", layers=3, kv_heads=4, ffn=112, vocab=128, attention="unfused",
    experts=8, topk=2, expert_ffn=48,
)  # fmt: skip
MLA = Mla(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10)
DEEPSEEK = replace(
    MIXTRAL, shared_experts=2, dense_layers=1, mla=MLA, kv_heads=8, head_dim=12, attention="flash"
)
ZIPF = replace(MIXTRAL, load=ExpertLoad("zipf", s=1.0))
ONE = keys(tp=1, sp=False, micro_batch=2, sequence=32)  # T = 64 tokens
T, H, K, E = 64, 64, 2, 2  # tokens, hidden, experts per token, bytes of an element


def works(items: Iterable[Item], phases: str = "FRIWO") -> list[tuple[str, Compute]]:
    return [
        (i.name, i.work)
        for i in items
        if isinstance(i, Kernel) and i.phase in phases and isinstance(i.work, Compute)
    ]


def collectives(items: Iterable[Item], axis: str) -> list[Collective]:
    return [i for i in items if isinstance(i, Collective) and i.axis == axis]


def sent(items: Iterable[Item], axis: str, ranks: int) -> float:
    return sum(SENT[c.collective](c.bytes, ranks) for c in collectives(items, axis))


def test_forward_of_a_layer_with_experts_by_hand() -> None:
    """64 tokens, 2 of 8 experts each: 128 copies, 16 for each expert, rows of 128 bytes."""
    ops = layer(MIXTRAL, share(small(MIXTRAL, ONE)))
    found = [(n, w.kind, w.bytes, w.shape) for op in ops for n, w, *_ in op.forward]
    begin = [name for name, *_ in found].index("mlp_norm") + 1
    copies, tokens = 128 * 128, 64 * 128
    matrices = 8 * 2 * (16 * 64 + 64 * 96 + 16 * 96), 8 * 2 * (16 * 48 + 48 * 64 + 16 * 64)
    assert found[begin:] == [
        ("router", "gemm", 2 * (64 * 64 + 64 * 8 + 64 * 8), (1, 64, 8, 64)),
        ("router_softmax", "softmax", 64 * 8 * (2 + 4), ()),
        ("router_topk", "softmax", 64 * 8 * (4 + 4 + 1), ()),
        ("permute", "elementwise", tokens + copies, ()),
        ("expert_fc1", "gemm", matrices[0], (8, 16, 96, 64)),
        ("expert_silu", "elementwise", 3 * 128 * 48 * 2, ()),
        ("expert_fc2", "gemm", matrices[1], (8, 16, 64, 48)),
        ("unpermute", "elementwise", copies + tokens, ()),
        ("mlp_residual", "elementwise", 3 * tokens, ()),
    ]


def test_backward_mirrors_it() -> None:
    program = stage_programs(small(MIXTRAL, ONE), [0], False, False)["B"]
    names = [item.name for item in program]
    assert names[: names.index("mlp_norm_grad_add")] == [
        "unpermute_backward", "expert_fc2_dgrad", "expert_fc2_wgrad", "expert_silu_backward",
        "expert_fc1_dgrad", "expert_fc1_wgrad", "permute_backward", "router_softmax_backward",
        "router_dgrad", "router_wgrad", "router_grad_add", "mlp_norm_backward",
    ]  # fmt: skip
    wgrad = dict(works(program))["expert_fc1_wgrad"]
    assert wgrad.shape == (8, 96, 64, 16)
    assert wgrad.bytes == 8 * (2 * (96 * 16 + 64 * 16) + 8 * 96 * 64)  # fp32 sums read and written


def test_shared_experts_are_one_mlp_before_the_others() -> None:
    names = [op.name for op in layer(DEEPSEEK, share(small(DEEPSEEK, ONE)), 1)]
    begin = names.index("mlp_norm") + 1
    assert names[begin:-1] == [
        "shared", "shared_fc1", "shared_silu", "shared_fc2", "router", "router", "topk", "dispatch",
        "expert_fc1", "expert_silu", "expert_fc2", "combine", "shared_sum",
    ]  # fmt: skip
    part = share(small(DEEPSEEK, ONE))
    assert (part.shared_ffn, part.expert_ffn, part.ffn) == (96, 48, 112)


def test_only_the_first_layers_are_dense() -> None:
    part = share(small(DEEPSEEK, ONE))
    assert [any(op.name == "router" for op in layer(DEEPSEEK, part, i)) for i in range(3)] == [
        False, True, True,
    ]  # fmt: skip
    assert DEEPSEEK.kinds == ((0, 1), (1, 2))
    assert MIXTRAL.kinds == ((0, 3),)


@pytest.mark.parametrize("model", [MIXTRAL, ZIPF, replace(DEEPSEEK, load=ExpertLoad("dirichlet"))])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_flops_of_kernels_are_those_of_the_formula(model: Model, recompute: str) -> None:
    """Backward is twice forward, and full recomputation runs a layer's forward again.

    Flash attention leaves half of the square out and computes scores again: without the core.
    """
    setting = ONE | {"recompute": recompute}
    programs = stage_programs(small(model, setting), range(3), first=True, last=True)
    core = 0.0 if model.attention == "unfused" else 3 * attention_flops(model, 2, 32)

    def flops(items: Iterable[Item], phases: str = "FRIWO") -> float:
        return sum(w.flops for _, w in works(items, phases) if "attention" not in w.kind)

    once = flops(programs["F"])
    assert 3 * once == model_flops(model, 2, 32) - 3 * core
    assert flops(programs["B"], "IW") == 2 * once
    again = {"none": 0, "selective": 3 * attention_flops(model, 2, 32) - core}
    full = sum(layer_flops(model, 2, 32, i) for i in range(3)) - core
    assert flops(programs["B"], "R") == again.get(recompute, full)
    rebuilt = rule.flops(model, 2, 32, WORDS[recompute])
    assert rebuilt - core * (recompute != "none") == again.get(recompute, full)


def test_dropped_tokens_are_not_multiplied() -> None:
    """Zipf over 8: 128 copies, 47 (of 47.1) for the first expert, which takes 1.5 x 16 = 24."""
    capped = replace(ZIPF, capacity_factor=1.5)
    assert share(small(ZIPF, ONE)).routed == (47, 23, 16, 12, 9, 8, 7, 6)
    assert share(small(capped, ONE)).routed == (24, 23, 16, 12, 9, 8, 7, 6)
    fc1 = [
        sum(
            w.flops
            for op in layer(m, share(small(m, ONE)))
            for n, w, *_ in op.forward
            if n == "expert_fc1"
        )
        for m in (ZIPF, capped)
    ]
    assert fc1[0] - fc1[1] == 2 * 23 * 96 * 64
    assert share(small(capped, ONE)).copies == 105


def test_uneven_experts_are_one_grouped_gemm() -> None:
    """Runs of as many tokens are batched, an expert without any has no product."""
    model = replace(MIXTRAL, load=ExpertLoad("histogram", counts=(4, 2, 2, 0, 0, 0, 0, 0)))
    works_ = dict(works(stage_programs(small(model, ONE), [0], False, False)["B"]))
    fc1 = works_["expert_fc1_dgrad"]
    assert (fc1.kind, fc1.shape) == ("grouped_gemm", (1, 64, 64, 96, 2, 32, 64, 96))
    assert works_["expert_fc1_wgrad"].shape == (1, 96, 64, 64, 2, 96, 64, 32)
    forward = dict(works(stage_programs(small(model, ONE), [0], False, False)["F"]))["expert_fc1"]
    assert forward.flops == 2 * 128 * 96 * 64
    assert forward.bytes == 2 * (128 * 64 + 3 * 64 * 96 + 128 * 96)


SEQUENTIAL = replace(ZIPF, kernels=Kernels(experts="sequential", permute="eager"))


@pytest.mark.parametrize("fp8", [None, Fp8(), Fp8("mxfp8")])
def test_experts_one_after_the_other_multiply_the_same(fp8: Fp8 | None) -> None:
    """Each has its own products of its own tokens; joining them copies all rows once each way."""
    setting = ONE | {"fp8": fp8}
    whole, apart = (
        stage_programs(small(model, setting), [0], first=False, last=False)["B" if fp8 else "F"]
        for model in (ZIPF, SEQUENTIAL)
    )
    counts = tokens(ZIPF.load, 8, T * K)
    name = "expert_fc1_dgrad" if fp8 else "expert_fc1"
    grouped = [work for n, work in works(whole) if n == name]
    each = [work for n, work in works(apart) if n == name]
    assert (len(grouped), len(each)) == (1, 8)
    assert [work.shape[1] for work in each] == list(counts)
    assert sum(w.flops for w in each) == grouped[0].flops
    assert sum(w.bytes for w in each) == pytest.approx(grouped[0].bytes, rel=1e-12)
    more = {"join", "join_backward"}
    extra = [work.bytes for n, work in works(apart) if n in more]
    assert extra == [2 * T * K * H * E]
    moved, others = (
        sum(w.bytes for n, w in works(p) if n not in more and w.kind == "elementwise")
        for p in (apart, whole)
    )
    assert moved == pytest.approx(others, rel=1e-12)  # casts too


def test_one_expert_of_a_rank_is_not_joined() -> None:
    setting = ONE | {"ep": 8}
    program = stage_programs(small(SEQUENTIAL, setting), [0], first=False, last=False)["F"]
    assert "join" not in [name for name, _ in works(program)]


def test_gradients_of_experts_one_after_the_other_are_whole() -> None:
    """The buckets hold the same parameters, whoever multiplies them."""
    held = parameters(ZIPF, 1, [0], first=False, last=False)
    data = replicas(degree=4, bucket=1e3)
    sizes = [
        sum(
            b.parameters
            for b in buckets(stage_programs(small(m, ONE), [0], False, False)["B"], held, data)
        )
        for m in (ZIPF, SEQUENTIAL)
    ]
    assert sizes == [held.total, held.total]


def test_eager_copies_of_tokens_have_prices_of_their_own() -> None:
    program = stage_programs(small(SEQUENTIAL, ONE), [0], first=False, last=False)["B"]
    by = {name: work.by for name, work in works(program) if "permute" in name}
    assert by == {"unpermute_backward": "eager_gather", "permute_backward": "eager_scatter"}


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_an_all_to_all_sends_what_is_published(ep: int, tp: int, recompute: str) -> None:
    """k T h bytes (N - 1) / N per rank for dispatch and combine, and again for their gradients."""
    setting = ONE | {"tp": tp, "sp": tp > 1, "ep": ep, "recompute": recompute}
    programs = stage_programs(small(MIXTRAL, setting), range(3), False, False)
    one_way = K * (T / tp) * H * E * (ep - 1) / ep
    forward = [c.name for c in collectives(programs["F"], "ep")]
    assert forward == ["dispatch_all_to_all", "combine_all_to_all"] * 3
    assert {c.collective for p in programs.values() for c in collectives(p, "ep")} == {"all_to_all"}
    assert sent(programs["F"], "ep", ep) == 3 * 2 * one_way
    again = 2 if recompute == "full" else 1
    assert sent(programs["B"], "ep", ep) == 3 * 2 * one_way * again
    assert sent(programs["I"], "ep", ep) == 3 * 2 * one_way * again
    assert sent(programs["W"], "ep", ep) == 0


def test_an_all_to_all_stands_between_the_kernels_of_both_sides() -> None:
    """Dispatch between permute and fc1, combine before unpermute; backward the other way round."""
    setting = ONE | {"ep": 8}
    programs = stage_programs(small(MIXTRAL, setting), [0], False, False)
    names = [item.name for item in programs["F"]]
    at = names.index("dispatch_all_to_all")
    assert names[at - 1 : at + 2] == ["permute", "dispatch_all_to_all", "expert_fc1"]
    assert at in programs["F"][at + 1].needs
    at = names.index("combine_all_to_all")
    assert names[at - 1 : at + 2] == ["expert_fc2", "combine_all_to_all", "unpermute"]
    assert at in programs["F"][at + 1].needs
    names = [item.name for item in programs["B"]]
    at = names.index("combine_grad_all_to_all")
    assert names[at - 1 : at + 2] == [
        "unpermute_backward", "combine_grad_all_to_all", "expert_fc2_dgrad",
    ]  # fmt: skip
    assert at in programs["B"][at + 1].needs
    at = names.index("dispatch_grad_all_to_all")
    assert names[at - 1 : at + 2] == [
        "expert_fc1_wgrad", "dispatch_grad_all_to_all", "permute_backward",
    ]  # fmt: skip
    assert at in programs["B"][at + 1].needs


def test_an_uneven_all_to_all_waits_for_the_rank_that_is_sent_most() -> None:
    """2 x 128 copies by Zipf over 8: 94 + 47 + 31 + 24 = 196 of 256 for the first of two ranks.

    Half of them come from the other rank; both ranks state that buffer.
    """
    setting = ONE | {"ep": 2}
    parts = [share(small(ZIPF, setting), ep_rank=rank) for rank in (0, 1)]
    assert [part.routed for part in parts] == [(94, 47, 31, 24), (19, 16, 13, 12)]
    assert [part.exchanged for part in parts] == [196, 196]
    assert [part.copies for part in parts] == [128, 128]
    buffers = [
        [
            c.bytes
            for c in collectives(
                stage_programs(small(ZIPF, setting), [0], False, False, ep_rank=r)["F"], "ep"
            )
        ]
        for r in (0, 1)
    ]
    assert buffers[0] == buffers[1] == [196 * H * E] * 2


@pytest.mark.parametrize(("ep", "etp"), [(1, 2), (4, 1), (4, 2), (8, 3)])
@pytest.mark.parametrize("model", [MIXTRAL, ZIPF])
def test_ranks_of_a_group_share_the_work(model: Model, ep: int, etp: int) -> None:
    """Summed over all ranks: every token of every rank k times through a whole expert."""
    setting = ONE | {"ep": ep, "etp": etp}
    total = 0.0
    for rank in range(ep):
        items = stage_programs(small(model, setting), [0], False, False, ep_rank=rank)["F"]
        total += etp * sum(w.flops for n, w in works(items) if n.startswith("expert_fc"))
    assert total == ep * etp * K * T * 3 * 2 * H * 48


def test_uneven_ranks_run_programs_of_their_own() -> None:
    setting = ONE | {"ep": 4}
    even = [
        stage_programs(small(MIXTRAL, setting), [0], False, False, ep_rank=r)["B"] for r in range(4)
    ]
    assert all(items == even[0] for items in even)
    uneven = [
        stage_programs(small(ZIPF, setting), [0], False, False, ep_rank=r)["B"] for r in range(4)
    ]
    assert all(items != uneven[0] for items in uneven[1:])


def test_split_experts_gather_tokens_and_scatter_outputs() -> None:
    """etp = 2, ep = 4: 2 T k copies for 2 of 8 experts, each rank has sent its T k before.

    One gather before the experts and a reduce-scatter behind them, backward the same mirrored.
    """
    setting = ONE | {"ep": 4, "etp": 2}
    part = share(small(MIXTRAL, setting))
    assert (part.expert_ffn, part.routed, part.exchanged) == (24, (128, 128), K * T)
    programs = stage_programs(small(MIXTRAL, setting), [0], False, False)
    whole = 2 * K * T * H * E
    for kind in "FI":
        inside = collectives(programs[kind], "etp")
        assert [c.collective for c in inside] == ["all_gather", "reduce_scatter"]
        assert [c.bytes for c in inside] == [whole, whole]
    alone = ONE | {"ep": 8, "etp": 2}  # no sort around one expert
    names = [
        c.name
        for c in collectives(stage_programs(small(MIXTRAL, alone), [0], False, False)["F"], "etp")
    ]
    assert names == ["expert_fc1_all_gather", "expert_fc2_reduce_scatter"]
    assert edges(small(MIXTRAL, ONE)) == {}


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK, replace(DEEPSEEK, mla=None)])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (2, 4, 1), (4, 2, 2)])
def test_parameters_are_the_matrices_that_get_gradients(
    model: Model, tp: int, ep: int, etp: int
) -> None:
    """Elements of all results of weight-gradient GEMMs; those of experts and copies apart."""
    setting = ONE | {"tp": tp, "sp": tp > 1, "ep": ep, "etp": etp}
    held = parameters(model, tp, range(3), False, False, ep, etp)
    program = stage_programs(small(model, setting), range(3), False, False)["W"]
    sizes = {"expert": 0, "replicated": 0, "linear": 0}
    for name, work in works(program):
        if work.kind != "gemm":
            continue
        batch, m, n, _ = work.shape
        whole = name.startswith(("router", "q_down", "kv_down"))
        kind = "expert" if name.startswith("expert") else "replicated" if whole else "linear"
        sizes[kind] += batch * m * n
    assert sizes == {"expert": held.expert, "replicated": held.replicated, "linear": held.linear}
    assert held.total == sum(sizes.values()) + held.norm


def test_parameters_by_hand() -> None:
    """Router 64 x 8; an expert 3 x 64 x 48; latents 64 x (24 + 16 + 4) and their norms 24 + 16."""
    held = parameters(MIXTRAL, 1, range(3), False, False, ep=2, etp=2)
    assert held.expert == 3 * 4 * 3 * 64 * 24
    assert held.replicated == 3 * 64 * 8
    latent = parameters(DEEPSEEK, 2, range(3), False, False)
    assert latent.expert == 2 * 8 * 3 * 64 * 48
    assert latent.replicated == 3 * 64 * (24 + 16 + 4) + 2 * 64 * 8
    assert latent.norm == 3 * (2 * 64 + 24 + 16)
    out = 24 * 8 * 12 + 16 * 8 * (8 + 10) + 8 * 10 * 64  # over all ranks
    assert latent.linear == (3 * out + 3 * 64 * 112 + 2 * 3 * 64 * 96) // 2
    assert total_parameters(MIXTRAL) - active_parameters(MIXTRAL) == 3 * 6 * 3 * 64 * 48


@pytest.mark.parametrize("model", [MIXTRAL, ZIPF])
def test_gradients_of_experts_are_reduced_when_they_are_made(model: Model) -> None:
    """Backward makes those of fc2 first, 8 x 64 x 48, then of fc1, each more than a bucket."""
    program = stage_programs(small(model, ONE), range(3), False, False)["B"]
    held = parameters(model, 1, range(3), False, False)
    found = buckets(program, held, replicas(degree=2, bucket=4 * 20_000))
    assert [bucket.parameters for bucket in found[:2]] == [8 * 64 * 48, 8 * 96 * 64]
    assert [program[bucket.after].name for bucket in found[:2]] == [
        "expert_fc2_wgrad",
        "expert_fc1_wgrad",
    ]
    assert sum(bucket.parameters for bucket in found) == held.total


def test_gradients_of_what_every_tp_rank_has_seen_in_part_are_summed() -> None:
    setting = ONE | {"tp": 2, "sp": True}
    held = parameters(DEEPSEEK, 2, range(3), False, False)
    job = small(DEEPSEEK, setting | {"layers_per_stage": (0, 3, 1)})
    size = replicated_gradient_bytes(job, 1)
    assert size == 4 * (held.norm + held.replicated)


def test_activations_of_a_layer_with_experts_by_hand() -> None:
    """Norm input, router input with fp32 scores and map, then per copy: fc1's input, both halves
    and fc2's input; dispatch, combine and the sum keep nothing."""
    dense = replace(MIXTRAL, experts=0, topk=0)
    mlp = E * T * (H + 2 * 112 + 112)  # fc1's input, both halves, fc2's input
    moe = E * T * H + T * 8 * (4 + 1) + E * T * K * (H + 2 * 48 + 48)
    assert layer_bytes(small(MIXTRAL, ONE)) - layer_bytes(small(dense, ONE)) == moe - mlp
    shared = replace(MIXTRAL, shared_experts=2)
    assert layer_bytes(small(shared, ONE)) - layer_bytes(small(MIXTRAL, ONE)) == E * T * (
        2 * 96 + 96
    )


def test_activations_follow_the_tokens_of_a_rank() -> None:
    setting = ONE | {"ep": 2}
    hot, cold = (layer_bytes(small(ZIPF, setting), 0, rank) for rank in (0, 1))
    assert hot - cold == (196 - 60) * E * (H + 3 * 48)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_stage_of_both_kinds_frees_what_it_keeps(recompute: str) -> None:
    setting = ONE | {"recompute": recompute}
    sizes = stage_bytes(small(DEEPSEEK, setting), range(3), False, False)
    assert sizes == {"activations": sum(layer_bytes(small(DEEPSEEK, setting), i) for i in range(3))}
    programs = stage_programs(small(DEEPSEEK, setting), range(3), False, False)
    changes = [c for item in programs["B"] for c in item.memory]
    assert sum(c.bytes for c in changes if c.category == "activations") == -sizes["activations"]
    rebuilt = [c.bytes for c in changes if c.category == "recompute" and c.at == "start"]
    plain = setting | {"recompute": "none"}
    whole, kept = (
        [layer_bytes(small(DEEPSEEK, s), i) for i in (2, 1, 0)] for s in (plain, setting)
    )
    expected = [all_of - some for all_of, some in zip(whole, kept, strict=True)]
    assert rebuilt == (expected if recompute != "none" else [])


def test_what_cannot_be_split_is_refused() -> None:
    for setting, sentence in (
        (ONE | {"ep": 3}, "experts = 8 cannot be split evenly by 3"),
        (ONE | {"etp": 5}, "expert_ffn = 48 cannot be split evenly by 5"),
    ):
        with pytest.raises(ValueError, match=sentence):
            share(small(MIXTRAL, setting))
