"""Activation bytes against the formulas and figures of Korthikanti et al. 2022."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from sim.builder.activations import first_stage_bytes, layer_bytes, stage_bytes
from sim.builder.blocks import KEPT
from sim.builder.program import Program
from sim.builder.stage import stage_programs
from sim.model.sizes import Model
from tests.small import GPT, keys, small

GIB = 2.0**30


def gpt(layers: int, hidden: int, heads: int) -> Model:
    return replace(
        GPT, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        ffn=4 * hidden, vocab=51200, vocab_padding=128, positions=2048,
    )  # fmt: skip


def held(program: Program) -> Counter[str]:
    """Bytes allocated less bytes freed, by category."""
    total: Counter[str] = Counter()
    for item in program:
        for change in item.memory:
            total[change.category] += change.bytes
    return total


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize(("s", "b", "h", "a"), [(2048, 4, 6144, 64), (512, 3, 1024, 16)])
def test_bytes_of_a_layer_are_those_of_the_formulas(t: int, s: int, b: int, h: int, a: int) -> None:
    """Table 2 of the paper, with the forms of tensor parallelism alone for what it leaves out."""
    sbh, square = s * b * h, Fraction(5 * a * s, h)

    def ours(sp: bool, recompute: str) -> float:
        return layer_bytes(small(gpt(1, h, a), keys(t, sp, b, s, recompute=recompute)))

    assert ours(False, "none") == sbh * (10 + (24 + square) / t)
    assert ours(True, "none") == sbh * (34 + square) / t
    assert ours(False, "selective") == sbh * (10 + 24 / t)
    assert ours(True, "selective") == 34 * sbh / t
    assert ours(False, "full") == 2 * sbh
    assert ours(True, "full") == 2 * sbh / t


@pytest.mark.parametrize(
    ("shape", "batch", "pipeline", "chunks", "sp", "recompute", "gib"),
    [  # models of Table 3; values of Figure 1
        ((48, 6144, 64), 4, 1, 1, False, "none", 59.25),
        ((96, 12288, 96), 1, 8, 3, False, "none", 66.84375),
        ((105, 20480, 128), 1, 35, 3, True, "selective", 23.0762),
        ((128, 25600, 160), 1, 64, 1, True, "selective", 26.5625),
        ((128, 25600, 160), 1, 64, 1, False, "none", 131.25),
    ],
)
def test_first_stage_holds_what_figure_1_shows(
    shape: tuple[int, int, int],
    batch: int,
    pipeline: int,
    chunks: int,
    sp: bool,
    recompute: str,
    gib: float,
) -> None:
    setting = keys(8, sp, batch, 2048, recompute=recompute)
    size = first_stage_bytes(small(gpt(*shape), setting), pipeline, chunks)
    assert round(size / GIB, len(str(gib).partition(".")[2])) == gib


def test_flash_gated_grouped_layer_by_hand() -> None:
    """Without dropout and squares; 8 rows of 16, 4 heads of 4 over 2 KV heads, two halves of 24."""
    model = replace(
        gpt(1, 16, 4), kv_heads=2, ffn=24, gated=True, norm="rms", attention="flash",
        activation="silu", position="rope", dropout=0.0, bias=False,
    )  # fmt: skip
    norms, linears = 2 * 8 * 16, 8 * 16 + 8 * 16 + 8 * 16 + 8 * 24
    qkv, halves, statistics = 8 * (16 + 2 * 8), 8 * 48, 4 * 8 * 4
    assert layer_bytes(small(model, keys(1, False, 1, 8))) == (
        2 * (norms + linears + qkv + halves) + statistics
    )


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sp", [False, True])
def test_backward_frees_what_forward_allocated(recompute: str, sp: bool) -> None:
    """At once, or half with the input gradients and half with the weight gradients."""
    model, setting = gpt(6, 64, 4), keys(2, sp, 3, 32, recompute=recompute)
    programs = stage_programs(small(model, setting), [3, 4, 5], first=True, last=True)
    forward = held(programs["F"])
    assert forward == stage_bytes(small(model, setting), [3, 4, 5], first=True, last=True)
    assert set(forward) == {"activations", "embedding", "logits"}
    for category, size in forward.items():
        assert held(programs["B"])[category] == -size
        assert held(programs["I"])[category] == held(programs["W"])[category] == -size / 2
    taken = [item.layer for item in programs["F"] for m in item.memory if m.category == KEPT]
    given = [item.layer for item in programs["B"] for m in item.memory if m.category == KEPT]
    assert (taken, given) == ([3, 4, 5], [5, 4, 3])  # layer by layer
    assert held(programs["B"])["recompute"] == 0
    assert held(programs["I"])["recompute"] + held(programs["W"])["recompute"] == 0


def test_other_terms_by_hand() -> None:
    """Dropout's mask of the embedding; both inputs of the head and its fp32 logits."""
    setting = keys(2, True, 3, 32)
    sizes = stage_bytes(small(gpt(6, 64, 4), setting), [0], first=True, last=True)
    assert sizes["embedding"] == 3 * 32 * 64 / 2
    assert sizes["logits"] == 2 * 2 * 3 * 32 * 64 / 2 + 4 * 3 * 32 * 51200 / 2


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_one_layer_at_a_time_is_rebuilt(recompute: str) -> None:
    """What is kept and what is rebuilt make the whole layer, and no two layers' overlap."""
    model, setting = gpt(6, 64, 4), keys(2, True, 3, 32, recompute=recompute)
    none = layer_bytes(small(model, setting | {"recompute": "none"}))
    rebuilt = none - layer_bytes(small(model, setting))
    changes = [
        change.bytes
        for item in stage_programs(small(model, setting), range(3), False, False)["B"]
        for change in item.memory
        if change.category == "recompute"
    ]
    assert changes == [rebuilt, -rebuilt] * 3


def curve(program: Program, category: str) -> list[float]:
    """Bytes of a category above the program's begin, after each change."""
    changes = [m.bytes for item in program for m in item.memory if m.category == category]
    return [float(sum(changes[: k + 1])) for k in range(len(changes))]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_logits_are_there_in_both_precisions_while_one_becomes_the_other(dtype: str) -> None:
    """n logits: 2 n and 4 n in the forward, 2 n and 4 n in the loss's backward, then 2 n; fp32
    ones, used in place, once."""
    model, setting = gpt(6, 64, 4), keys(2, True, 3, 32, dtype=dtype)
    programs = stage_programs(small(model, setting), [5], first=False, last=True)
    n, size = 3 * 32 * 51200 // 2, 2 if dtype == "bf16" else 4
    kept = 2 * size * 3 * 32 * 64 / 2 + 4 * n
    if dtype == "fp32":
        assert curve(programs["F"], "logits") == [kept]
        assert curve(programs["B"], "logits") == [-kept]
        return
    assert curve(programs["F"], "logits") == [kept, kept + 2 * n, kept]
    assert curve(programs["B"], "logits") == [2 * n, -2 * n, -kept]
    assert curve(programs["I"], "logits") == [2 * n, -2 * n, -kept / 2]


def test_weight_gradients_are_whole_before_they_are_added() -> None:
    """16 bits of the head, of the layers' largest matrix and of the embedding, one at a time."""
    model, setting = gpt(6, 64, 4), keys(2, True, 3, 32)
    programs = stage_programs(small(model, setting), [0, 1], first=True, last=True)
    rows, largest = 2 * 64 * 51200 / 2, 2 * 64 * 256 / 2
    for kind in "BW":
        found = curve(programs[kind], "weight_gradient")
        assert found == [rows, 0.0, largest, 0.0, rows, 0.0]
    assert curve(programs["I"], "weight_gradient") == []
