"""Context parallelism: bytes and FLOPs by the papers' formulas, what is hidden, what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sim.analysis.traffic import SENT
from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.model import blocks
from sim.model.sizes import Model, attention_flops
from sim.recipe.recipe import ParallelismSection
from sim.strategies.context.ranks import members, twin
from tests.small import Keys, keys, small

LLAMA = Model(
    name="llama", layers=2, hidden=64, heads=8, kv_heads=4, head_dim=8, ffn=176, gated=True,
    vocab=512, tied=False, norm="rms", attention="flash", activation="silu", qkv_bias=False,
    bias=False, position="rope", dropout=0.0, vocab_padding=1, positions=0,
)  # fmt: skip
GPT = replace(LLAMA, kv_heads=8, attention="unfused", dropout=0.1, position="learned", positions=96)
B, S = 3, 96
A = B * S * 64 * 2  # bytes of one full-sequence activation
KV = 4 / 8  # kv_heads / heads
PLAIN = keys(tp=1, sp=False, micro_batch=B, sequence=S)
PLACEMENTS = ["contiguous", "zigzag", "striped"]


def shared(kind: str, cp: int, placement: str = "zigzag", **changes: object) -> Keys:
    return PLAIN | {"cp": cp, "cp_kind": kind, "cp_placement": placement, **changes}


def programs(model: Model, setting: Keys, rank: int = 0) -> dict[str, Program]:
    return stage_programs(small(model, setting), [0], False, False, cp_rank=rank)


def split(setting: Keys) -> ParallelismSection:
    return small(LLAMA, setting).parallelism


def sent(items: Iterable[Item], setting: Keys, *names: str) -> float:
    """Bytes that one rank sends over cp, of collectives whose names begin so."""
    p = split(setting)
    size = {"cp": p.cp, "cp_ulysses": p.ulysses, "cp_ring": p.cp // p.ulysses}
    return sum(
        SENT[i.collective](i.bytes, size[i.axis])
        for i in items
        if isinstance(i, Collective) and i.axis in size and i.name.startswith(names or "")
    )


def flops(items: Iterable[Item], *kinds: str) -> float:
    return sum(i.work.flops for i in items if isinstance(i, Kernel) and i.work.kind in kinds)


# -- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_ulysses_exchanges_four_tensors_each_way(n: int) -> None:
    """Each sends (N - 1) A / N², keys and values times kv_heads / heads."""
    setting = shared("ulysses", n)
    for phase in "FB":
        items = [i for i in programs(LLAMA, setting)[phase] if isinstance(i, Collective)]
        assert [i.collective for i in items] == ["all_to_all"] * 4
        one = (n - 1) * A / n**2
        assert sent(items, setting) == one * (2 + 2 * KV)
        assert {SENT["all_to_all"](i.bytes, n) for i in items} == {one, one * KV}


def test_ulysses_bytes_stay_about_the_same_when_sequence_and_ranks_grow_together() -> None:
    few, many = (shared("ulysses", n, sequence=32 * n) for n in (2, 4))
    ratio = sent(programs(LLAMA, many)["F"], many) / sent(programs(LLAMA, few)["F"], few)
    assert ratio == (3 / 4) / (1 / 2)  # (N - 1) / N, which goes to 1


def test_ulysses_copies_kv_heads_where_there_are_too_few() -> None:
    """8 ranks and 4 KV heads: each is copied, and as many bytes go as for 8."""
    setting = shared("ulysses", 8)
    items = programs(LLAMA, setting)["F"]
    assert sent(items, setting, "key", "value") == 2 * 7 * A / 64
    (copies,) = (i for i in items if i.name == "kv_copies")
    assert copies.work.bytes == 2 * (A * KV / 8 + A / 8)
    (core,) = (i for i in items if i.name == "attention")
    assert core.work.shape == (B, 1, S, S, 8)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_ring_passes_keys_and_values_on(n: int, placement: str) -> None:
    """Forward 2 (N - 1) kv A / N; backward as much, and N hops each of dK and dV in fp32."""
    setting = shared("ring", n, placement)
    forward = 2 * (n - 1) * KV * A / n
    home = 2 * n * KV * (A * 4 / 2) / n
    for rank in range(n):
        items = programs(LLAMA, setting, rank)
        assert sent(items["F"], setting) == pytest.approx(forward, rel=1e-15)
        assert sent(items["B"], setting, "attention_kv_hop") == pytest.approx(forward, rel=1e-15)
        assert sent(items["B"], setting, "attention_kv_grad_hop") == pytest.approx(home, rel=1e-15)
        hops = [i for i in items["F"] if isinstance(i, Collective)]
        assert [i.collective for i in hops] == ["ring_exchange"] * (n - 1)
        assert sent(items["B"], setting) == sent(items["I"], setting)


def test_allgather_gathers_twice_and_scatters_once() -> None:
    """Keys and values: (N - 1) / N of all of them forward, twice that backward, 16 bits each."""
    n, setting = 4, shared("allgather", 4)
    one = 2 * (n - 1) / n * A * KV
    forward, backward = (programs(LLAMA, setting)[phase] for phase in "FB")
    assert sent(forward, setting) == one
    assert sent(backward, setting) == 2 * one
    kinds = [i.collective for i in backward if isinstance(i, Collective)]
    assert kinds == ["all_gather"] * 2 + ["reduce_scatter"] * 2


def test_usp_exchanges_inside_and_hops_across() -> None:
    """2 x 4: a quarter of the sequence twice exchanged for heads, whose keys hop 3 times."""
    setting = shared("usp", 8, ulysses=2)
    items = programs(LLAMA, setting, 5)["F"]
    assert {i.axis for i in items if isinstance(i, Collective)} == {"cp_ulysses", "cp_ring"}
    inside = [i for i in items if isinstance(i, Collective) and i.axis == "cp_ulysses"]
    assert sent(inside, setting) == (1 / 2) * (A / 8) * (2 + 2 * KV)
    across = [i for i in items if isinstance(i, Collective) and i.axis == "cp_ring"]
    assert sent(across, setting) == 3 * 2 * KV * A / 8
    assert [members(split(setting), axis, 5) for axis in ("cp_ulysses", "cp_ring")] == [
        (4, 5),
        (1, 3, 5, 7),
    ]


@pytest.mark.slow
def test_usp_ends_are_ulysses_and_the_ring() -> None:
    """But for the names of the axes."""
    for degree, kind in ((4, "ulysses"), (1, "ring")):
        mixed, pure = shared("usp", 4, ulysses=degree), shared(kind, 4)
        for rank in range(4):
            ours, theirs = programs(LLAMA, mixed, rank), programs(LLAMA, pure, rank)
            for phase in "FBIW":
                named = [
                    i._replace(axis="cp") if isinstance(i, Collective) else i for i in ours[phase]
                ]
                assert named == theirs[phase]


# -- work -----------------------------------------------------------------------------------------


KINDS = [
    ("ulysses", "zigzag", 1),
    *(("ring", placement, 1) for placement in PLACEMENTS),
    *(("allgather", placement, 1) for placement in PLACEMENTS[:2]),
    *(("usp", placement, 2) for placement in PLACEMENTS),
]


@pytest.mark.parametrize(("kind", "placement", "ulysses"), KINDS)
@pytest.mark.parametrize("n", [2, 4, 8])
def test_all_ranks_together_do_the_work_of_one(
    kind: str, placement: str, ulysses: int, n: int
) -> None:
    """Exactly: half of all pairs of the sequence forward, 2.5 times that backward."""
    setting = shared(kind, n, placement, ulysses=ulysses)
    ranks = [stage_programs(small(LLAMA, setting), [0], True, True, cp_rank=r) for r in range(n)]
    alone = stage_programs(small(LLAMA, PLAIN), [0], True, True)
    whole = attention_flops(LLAMA, B, S) / 2
    assert sum(flops(p["F"], "attention") for p in ranks) == whole
    assert sum(flops(p["B"], "attention_backward") for p in ranks) == 2.5 * whole
    for phase in "FBIW":
        assert sum(flops(p[phase], "gemm") for p in ranks) == flops(alone[phase], "gemm")


def brute(placement: str, ranks: int, rank: int, rows: int) -> np.ndarray:
    """The tokens of a rank, by the words of the papers."""
    tokens = np.arange(ranks * rows)
    match placement:
        case "contiguous":
            return tokens[rank * rows :][:rows]
        case "striped":
            return tokens[rank::ranks]
    runs = tokens.reshape(2 * ranks, -1)
    return np.concatenate([runs[rank], runs[2 * ranks - 1 - rank]])


@pytest.mark.parametrize(("placement", "n"), [*product(PLACEMENTS, [2, 3, 5])])
def test_blocks_hold_the_pairs_that_a_mask_leaves(placement: str, n: int) -> None:
    """Counted token by token, the diagonal as halves; no kernel spans more than it must."""
    rows = 6
    for rank in range(n):
        steps = blocks.ring(placement, n, rank, rows)
        for step, block in enumerate(steps):
            queries = brute(placement, n, rank, rows)
            keys = brute(placement, n, (rank - step) % n, rows)
            mask = (queries[:, None] > keys) + (queries[:, None] == keys) / 2
            assert (block.pairs if block else 0.0) == mask.sum()
            if block:
                assert block.queries == (mask.sum(axis=1) > 0).sum()
                assert block.keys == (mask.sum(axis=0) > 0).sum()
        if placement != "striped":
            runs = blocks.gathered(placement, n, rank, rows)
            queries = brute(placement, n, rank, rows)
            tokens = np.arange(n * rows)
            mask = (queries[:, None] > tokens) + (queries[:, None] == tokens) / 2
            assert sum(block.pairs for block in runs) == mask.sum()
            assert max(block.keys for block in runs) == queries.max() + 1


def test_contiguous_is_unequal_zigzag_equal_and_striped_equal_up_to_the_diagonal() -> None:
    n, rows = 4, 24
    work = {
        p: [sum(b.pairs for b in blocks.ring(p, n, r, rows) if b) for r in range(n)]
        for p in PLACEMENTS
    }
    assert work["contiguous"] == [rows**2 / 2 + r * rows**2 for r in range(n)]
    assert set(work["zigzag"]) == {n * rows**2 / 2}
    assert max(work["striped"]) - min(work["striped"]) == (n - 1) * rows
    even = {block.pairs for r in range(n) for block in blocks.ring("zigzag", n, r, rows) if block}
    assert even == {rows**2 / 2}  # at every step, too


@pytest.mark.parametrize("setting", [shared(k[0], 4, k[1], ulysses=k[2]) for k in KINDS])
def test_which_ranks_are_alike(setting: Keys) -> None:
    """A rank and its twin have the same programs, two twins not; a zigzag has as many FLOPs."""
    ran = [programs(LLAMA, setting, rank) for rank in range(4)]
    for rank in range(4):
        assert ran[rank] == ran[twin(split(setting), rank)]
        assert next(r for r in range(4) if ran[r] == ran[rank]) == twin(split(setting), rank)
    alike = twin(split(setting), 3) == 0
    assert alike == all(p == ran[0] for p in ran)
    work = {flops(p["F"], "attention") for p in ran}
    assert (alike or setting["cp_placement"] == "zigzag") == (len(work) == 1)


def test_all_but_attention_sees_a_rank_s_own_tokens() -> None:
    part = share(small(LLAMA, shared("ring", 4)), cp_rank=3)
    assert (part.sequence, part.tokens, part.heads) == (S // 4, B * S // 4, 8)
    split = share(small(LLAMA, shared("ring", 4, tp=2, sp=True)), cp_rank=3)
    assert (split.sequence, split.tokens, split.heads) == (S // 4, B * S // 8, 4)


# -- memory ---------------------------------------------------------------------------------------


def allocated(setting: Keys) -> float:
    items = stage_programs(small(LLAMA, setting), [0], True, True)["F"]
    return sum(change.bytes for item in items for change in item.memory)


@pytest.mark.parametrize("n", [2, 4])
def test_each_rank_keeps_its_share(n: int) -> None:
    """An N-th of everything; under Ulysses also the output as it left the kernel, A / N."""
    whole = allocated(PLAIN)
    for kind in ("ring", "allgather"):
        assert allocated(shared(kind, n)) == whole / n
    assert allocated(shared("ulysses", n)) == (whole + A) / n


def test_kernels_around_a_block_move_fp32() -> None:
    """zhuzilin/ring-flash-attention: outputs merged, gradients summed, both cast back at the end.

    The first block is copied (2 + 4 bytes per number), others are added (2 + 4 + 4) to the half of
    the rows that zigzag's rank 0 computes; with three fp32 statistics per row read or written.
    """
    numbers, kv = A / 2 / 2, A * KV / 2 / 2  # of queries (or outputs), and of keys, on a rank
    rows = B * S / 2 * 8
    items = {phase: programs(LLAMA, shared("ring", 2))[phase] for phase in "FB"}

    def moved(phase: str, name: str) -> list[float]:
        return [i.work.bytes for i in items[phase] if i.name == name]

    merges = [6 * numbers + 2 * 4 * rows, (10 * numbers + 3 * 4 * rows) / 2]
    assert moved("F", "attention_merge") == merges
    assert moved("F", "attention_cast") == [6 * numbers]
    assert moved("B", "attention_query_grad_add") == [6 * numbers, 10 * numbers / 2]
    assert moved("B", "attention_kv_grad_add") == [2 * 6 * kv, 2 * 10 * kv]
    assert moved("B", "attention_grad_cast") == [6 * (numbers + 2 * kv)]


# -- nothing changes ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ring", "ulysses", "allgather", "usp"])
@pytest.mark.parametrize("model", [LLAMA, GPT])
def test_degree_one_changes_nothing(kind: str, model: Model) -> None:
    for placement in PLACEMENTS:
        one = stage_programs(small(model, shared(kind, 1, placement)), [0, 1], True, True)
        assert one == stage_programs(small(model, PLAIN), [0, 1], True, True)


def test_ulysses_runs_an_unfused_core_over_the_whole_sequence() -> None:
    items = programs(GPT, shared("ulysses", 4))["F"]
    (scores,) = (i for i in items if i.name == "scores")
    assert scores.work.shape == (B * 2, S, S, 8)


# -- order ----------------------------------------------------------------------------------------


def test_each_hop_runs_beside_the_block_before() -> None:
    """Hop i + 1 is issued before kernel i and waited for by kernel i + 1 alone."""
    items = programs(LLAMA, shared("ring", 4), 2)["F"]
    kernels = [k for k, i in enumerate(items) if i.name == "attention"]
    for i, k in enumerate(kernels):
        needs = [items[n].name for n in items[k].needs]
        assert needs == ([f"attention_kv_hop_{i}"] if i else [])
        if i < 3:
            assert items[k - 1].name == f"attention_kv_hop_{i + 1}"


def test_ranks_with_nothing_to_do_pass_keys_on() -> None:
    """Contiguous, rank 0 of 4: one kernel, and all hops, the last of which it waits for."""
    items = programs(LLAMA, shared("ring", 4, "contiguous"), 0)["F"]
    core = [i.name for i in items if i.name.startswith("attention_") and "norm" not in i.name]
    hops = [f"attention_kv_hop_{i}" for i in (1, 2, 3)]
    assert core[:5] == [hops[0], "attention_merge", *hops[1:], "attention_cast"]
    (cast,) = (i for i in items if i.name == "attention_cast")
    assert [items[n].name for n in cast.needs] == hops[2:]


def test_gradients_follow_their_keys_and_come_home() -> None:
    items = programs(LLAMA, shared("ring", 3), 1)["B"]
    hops = [i.name for i in items if isinstance(i, Collective)]
    kv, grad = "attention_kv_hop_", "attention_kv_grad_hop_"
    assert hops == [f"{kv}1", f"{grad}0", f"{kv}2", f"{grad}1", f"{grad}2"]
    added = [i for i in items if i.name == "attention_kv_grad_add"]
    assert [[items[n].name for n in i.needs] for i in added] == [[], [f"{grad}0"], [f"{grad}1"]]
    (cast,) = (i for i in items if i.name == "attention_grad_cast")
    assert [items[n].name for n in cast.needs] == [f"{grad}2"]


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", ["ring", "ulysses", "allgather"])
def test_recomputation_communicates_again(kind: str, recompute: str) -> None:
    """What brings the core its inputs runs again, but not what Ulysses has kept."""
    setting = shared(kind, 4, recompute=recompute)
    plain = programs(LLAMA, shared(kind, 4))
    extra = sent(programs(LLAMA, setting)["B"], setting) - sent(plain["B"], setting)
    kept = kind == "ulysses" and recompute == "selective"
    assert extra == (0 if kept else sent(plain["F"], setting))


@pytest.mark.parametrize(("kind", "placement", "ulysses"), KINDS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_needs_point_back_to_the_other_stream(
    kind: str, placement: str, ulysses: int, recompute: str
) -> None:
    setting = shared(kind, 4, placement, ulysses=ulysses, recompute=recompute, tp=2, sp=True)
    for rank in range(4):
        made = stage_programs(small(LLAMA, setting), [0, 1], True, True, cp_rank=rank)
        for program in made.values():
            for i, item in enumerate(program):
                assert all(0 <= n < i for n in item.needs)
                assert all(type(program[n]) is not type(item) for n in item.needs)
        net = sum(c.bytes for phase in "FB" for item in made[phase] for c in item.memory)
        assert net == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (shared("ring", 5), "sequence = 96 cannot be split evenly by 10"),
        (shared("ring", 64, "striped"), "sequence = 96 cannot be split evenly by 64"),
        (shared("ulysses", 3), "heads per rank = 8 cannot be split evenly by 3"),
        (shared("ulysses", 4, tp=4), "heads per rank = 2 cannot be split evenly by 4"),
        (shared("usp", 4, ulysses=3), "cp = 4 cannot be split evenly by ulysses = 3"),
        (shared("allgather", 2, "striped"), "no placement 'striped' here; there are contiguous"),
    ],
)
def test_what_cannot_be_shared_is_refused(setting: Keys, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        programs(LLAMA, setting)


def test_an_unfused_core_sees_a_whole_sequence() -> None:
    for kind in ("ring", "allgather"):
        with pytest.raises(ValueError, match="ring and allgather need flash"):
            programs(GPT, shared(kind, 2))
