"""Parameters and FLOPs against the papers' closed forms and against published parameter counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.model.sizes import (
    Model,
    model_flops,
    norm_parameters,
    padded_vocab,
    parameters,
    total_parameters,
)
from sim.strategies.recompute import rule
from sim.strategies.recompute.declare import WORDS
from tests import small

GPT = replace(
    small.GPT, layers=48, hidden=6144, heads=64, kv_heads=64, head_dim=96, ffn=4 * 6144,
    vocab=51200, vocab_padding=128, positions=2048,
)  # fmt: skip
LLAMA = replace(
    GPT, name="llama", gated=True, tied=False, norm="rms", attention="flash", activation="silu",
    qkv_bias=False, bias=False, position="rope", dropout=0.0, vocab_padding=1,
)  # fmt: skip
LLAMA3 = replace(LLAMA, layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672)
SHAPES = [(48, 6144, 64), (96, 12288, 96), (105, 20480, 128), (128, 25600, 160)]


def gpt(layers: int, hidden: int, heads: int) -> Model:
    return replace(
        GPT, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        ffn=4 * hidden,
    )  # fmt: skip


@pytest.mark.parametrize(("layers", "h", "heads"), SHAPES)
def test_flops_of_gpt_are_those_of_the_papers(layers: int, h: int, heads: int) -> None:
    """Korthikanti et al. 2022, equation 8; with full recomputation Narayanan et al. 2021, 3."""
    batch, s, vocab = 12, 2048, 51200
    model = gpt(layers, h, heads)
    once = batch * layers * s * h * h
    expected = 72 * once * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert model_flops(model, batch, s, tp=8) == pytest.approx(expected, rel=1e-14)
    recomputed = 96 * once * (1 + s / (6 * h) + vocab / (16 * h * layers))
    full = expected + rule.flops(model, batch, s, WORDS["full"])
    assert full == pytest.approx(recomputed, rel=1e-14)
    core = 4 * batch * s * s * h * layers  # scores and context once more
    assert rule.flops(model, batch, s, WORDS["selective"]) == pytest.approx(core, rel=1e-14)


@pytest.mark.parametrize(("layers", "h", "heads"), SHAPES)
def test_parameters_of_gpt_are_those_of_the_paper(layers: int, h: int, heads: int) -> None:
    """Narayanan et al. 2021, equation 2, which leaves out the final norm's 2 h."""
    formula = 12 * layers * h * h + 13 * layers * h + (51200 + 2048) * h
    assert total_parameters(gpt(layers, h, heads)) == formula + 2 * h


@pytest.mark.parametrize(
    ("model", "count"),
    [  # counts of the released checkpoints
        (replace(GPT, layers=12, hidden=768, heads=12, kv_heads=12, head_dim=64, ffn=3072,
                 vocab=50257, positions=1024), 124_439_808),
        (replace(LLAMA, layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=11008,
                 vocab=32000), 6_738_415_616),
        (replace(LLAMA, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336,
                 vocab=128256), 8_030_261_248),
        (replace(LLAMA3, vocab=128256), 70_553_706_496),
    ],
    ids=["GPT-2", "Llama 2 7B", "Llama 3 8B", "Llama 3 70B"],
)  # fmt: skip
def test_parameters_are_those_released(model: Model, count: int) -> None:
    assert total_parameters(model) == count


def test_untied_models_count_their_output_matrix_without_padding() -> None:
    padded = replace(GPT, vocab=50257)
    assert total_parameters(replace(padded, tied=False)) - total_parameters(padded) == 50257 * 6144


def test_vocabulary_is_padded_as_megatron_pads_it() -> None:
    """GPT-2's 50,257 become 50,304 on one rank and 51,200 on eight."""
    model = replace(GPT, vocab=50257)
    assert (padded_vocab(model), padded_vocab(model, 8)) == (50304, 51200)


@pytest.mark.parametrize("model", [GPT, replace(LLAMA, layers=48)], ids=lambda m: m.name)
@pytest.mark.parametrize("tp", [2, 8])
def test_ranks_hold_the_whole_once_but_for_what_is_copied(model: Model, tp: int) -> None:
    one = parameters(model, 1, range(48), first=True, last=True)
    part = parameters(model, tp, range(48), first=True, last=True)
    copied = part.norm + part.row_bias + part.positions
    assert tp * part.total - (tp - 1) * copied == one.total


def test_stages_hold_the_whole_and_a_second_copy_of_a_tied_embedding() -> None:
    stages = [range(19), range(19, 40), range(40, 48)]
    held = [parameters(GPT, 4, own, i == 0, i == 2).total for i, own in enumerate(stages)]
    whole = parameters(GPT, 4, range(48), first=True, last=True)
    assert sum(held) - whole.total == whole.embedding == 51200 * 6144 // 4
    untied = replace(GPT, tied=False)
    held = [parameters(untied, 4, own, i == 0, i == 2).total for i, own in enumerate(stages)]
    assert sum(held) == parameters(untied, 4, range(48), first=True, last=True).total


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """Of 8 KV heads of 128, 16 ranks hold one each: 8 more copies of 2 × 8192 × 128."""
    eight, sixteen = (parameters(LLAMA3, tp, [0], False, False).linear for tp in (8, 16))
    assert 16 * sixteen - 8 * eight == 8 * 2 * 8192 * 128
    assert norm_parameters(LLAMA3) == 8192
