"""Tensor and sequence parallelism: bytes of every table row, order, overlap, conserved work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import networkx as nx
import pytest

from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.shares import edges, share
from sim.builder.stage import stage_programs
from sim.model.sizes import Model
from sim.strategies.tensor.sequence import replicated_gradient_bytes
from sim.strategies.tp_overlap import pieces
from tests import small as small_models
from tests.small import Keys, keys, small

GPT = replace(small_models.GPT, layers=4)
LLAMA = replace(small_models.LLAMA, layers=4, vocab_padding=16, positions=32)
B, S = 3, 32
A = B * S * 64 * 2  # bytes of one residual activation
PLAIN = keys(tp=4, sp=False, micro_batch=B, sequence=S)
SPLIT = PLAIN | {"sp": True}


def sent(items: Iterable[Item], t: int) -> float:
    """Bytes that each of t ranks sends: a ring's share of every collective."""
    rounds = {"all_reduce": 2 * (t - 1), "all_gather": t - 1, "reduce_scatter": t - 1}
    return sum(rounds[i.collective] * i.bytes / t for i in items if isinstance(i, Collective))


def counted(items: Iterable[Item], layer: int = 0) -> Counter[str]:
    return Counter(i.collective for i in items if isinstance(i, Collective) and i.layer == layer)


def layer_program(model: Model, setting: Keys) -> dict[str, Program]:
    return stage_programs(small(model, setting), [0], first=False, last=False)


def of(items: Iterable[Item], *names: str) -> list[Item]:
    """Items of operators with these names."""
    return [i for i in items if i.name.startswith(names)]


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("t", [2, 4, 8])
def test_block_all_reduces_twice_each_way(model: Model, t: int) -> None:
    """Attention once, MLP once, each way: 4 (t - 1) A / t in forward and the same in backward."""
    programs = layer_program(model, PLAIN | {"tp": t})
    for phase, mlp in (("F", ["fc2"]), ("B", ["fc1_grad"])):
        assert counted(programs[phase]) == {"all_reduce": 2}
        assert sent(programs[phase], t) == 4 * (t - 1) * A / t
        assert sent(of(programs[phase], *mlp), t) == 2 * (t - 1) * A / t
    assert sent(programs["I"], t) == sent(programs["B"], t)
    assert sent(programs["W"], t) == 0


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("t", [2, 4, 8])
@pytest.mark.parametrize("overlap", [False, True])
def test_sequence_parallel_block(model: Model, t: int, overlap: bool) -> None:
    """Forward 2 AG + 2 RS, the bytes of two all-reduces; backward 2 AG + 2 RS + 2 AG."""
    setting = SPLIT | {"tp": t, "tp_backward_overlap": overlap}
    programs = layer_program(model, setting)
    assert counted(programs["F"]) == {"all_gather": 2, "reduce_scatter": 2}
    assert sent(programs["F"], t) == 4 * (t - 1) * A / t
    assert counted(programs["B"]) == {"all_gather": 4, "reduce_scatter": 2}
    assert sent(programs["B"], t) == 6 * (t - 1) * A / t
    assert sent(programs["I"], t) + sent(programs["W"], t) == 6 * (t - 1) * A / t


@pytest.mark.parametrize(("setting", "again"), [*product([PLAIN, SPLIT], ["selective", "full"])])
def test_full_recomputation_repeats_the_forwards_collectives(setting: Keys, again: str) -> None:
    forward, once = (layer_program(GPT, setting)[phase] for phase in "FB")
    backward = layer_program(GPT, setting | {"recompute": again})["B"]
    extra = sent(forward, 4) if again == "full" else 0
    assert sent(backward, 4) - sent(once, 4) == extra
    assert sent((i for i in backward if i.phase == "R"), 4) == extra


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_vocabulary_parallel_embedding(model: Model) -> None:
    """Forward an all-reduce of the looked-up rows, backward local; split: RS, and AG.

    Learned positions are added to all rows, before each rank keeps its part (Megatron-LM,
    core/models/common/embeddings/language_model_embedding.py).
    """
    scattered = {"all_reduce" if model.position == "learned" else "reduce_scatter": 1}
    for setting, forward, backward in (
        (PLAIN, {"all_reduce": 1}, {}),
        (SPLIT, scattered, {"all_gather": 1}),
    ):
        programs = stage_programs(small(model, setting), [], first=True, last=False)
        assert counted(programs["F"], -1) == forward
        assert counted(programs["B"], -1) == backward
        assert {i.bytes for p in "FB" for i in programs[p] if isinstance(i, Collective)} == {A}


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_vocabulary_parallel_head(model: Model) -> None:
    """Three fp32 numbers per token; split: also the input's gather, re-gather and reduction."""
    plain, split = (stage_programs(small(model, s), [], False, True) for s in (PLAIN, SPLIT))
    for programs in (plain, split):
        loss = [i for i in of(programs["F"], "loss") if isinstance(i, Collective)]
        assert [(i.collective, i.bytes) for i in loss] == [("all_reduce", B * S * 4)] * 3
    assert sent(of(plain["F"], "head"), 4) == 0
    assert sent(of(split["F"], "head"), 4) == 3 * A / 4
    assert counted(plain["B"], -1) == {"all_reduce": 1}
    assert counted(split["B"], -1) == {"all_gather": 1, "reduce_scatter": 1}
    assert sent(plain["B"], 4) == sent(split["B"], 4) == 6 * A / 4


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_work_is_divided_and_none_is_lost(model: Model, sp: bool, recompute: str) -> None:
    """FLOPs of t ranks are those of one; only replicated KV heads are computed twice as often."""
    model = replace(model, vocab=512)  # padded alike
    one = PLAIN | {"tp": 1, "recompute": recompute}
    whole = stage_programs(small(model, one), [0, 1], True, True)
    for t in (2, 4, 8):
        part = stage_programs(small(model, one | {"tp": t, "sp": sp}), [0, 1], True, True)
        extra = max(0, t - model.kv_heads) * 2 * model.head_dim * model.hidden * 2 * B * S * 2
        for phase, times in (("F", 1), ("B", 2 + (recompute == "full"))):
            flops = sum(i.work.flops for i in part[phase] if isinstance(i, Kernel))
            expected = sum(i.work.flops for i in whole[phase] if isinstance(i, Kernel))
            assert t * flops == expected + times * extra


def test_degree_one_changes_nothing() -> None:
    plain = stage_programs(small(GPT, PLAIN | {"tp": 1}), [0], True, True)
    on = SPLIT | {"tp": 1, "tp_overlap": True}
    assert stage_programs(small(GPT, on), [0], True, True) == plain
    assert not any(isinstance(i, Collective) for p in plain.values() for i in p)
    assert edges(small(GPT, on)) == {}
    split = stage_programs(small(GPT, SPLIT), [0], True, True)["F"]
    assert pieces.cut(split, 1) == split


def test_norms_dropouts_and_residuals_are_split_over_tokens_alone() -> None:
    plain, split = (layer_program(GPT, s)["F"] for s in (PLAIN, SPLIT))
    local = {"attention_norm", "mlp_norm", "attention_residual", "mlp_residual"}
    for a in (i for i in plain if isinstance(i, Kernel)):
        (b,) = (i for i in split if i.name == a.name and isinstance(i, Kernel))
        assert b.work.bytes == a.work.bytes / (4 if a.name in local else 1)


SETTINGS = [
    base | {"recompute": recompute, "tp_overlap": cut, "tp_backward_overlap": beside}
    for base, recompute, cut, beside in product(
        [PLAIN, SPLIT], ["none", "selective", "full"], [False, True], [False, True]
    )
]


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_needs_point_back_to_the_other_stream(model: Model, setting: Keys) -> None:
    """And every collective, or a later one, is waited for before the program ends."""
    for program in stage_programs(small(model, setting), [0, 1], True, True).values():
        waited = set()
        for i, item in enumerate(program):
            assert all(0 <= n < i for n in item.needs)
            assert all(type(program[n]) is not type(item) for n in item.needs)
            waited |= {n for n in item.needs if isinstance(item, Kernel)}
        collectives = [i for i, item in enumerate(program) if isinstance(item, Collective)]
        assert all(any(n in waited for n in collectives if n >= c) for c in collectives)


def ordered(program: Program) -> nx.DiGraph:
    """What must end before what: both streams in order, and all needs; transitively closed."""
    dag = nx.DiGraph()
    last: dict[type, int] = {}
    for i, item in enumerate(program):
        dag.add_node(i)
        dag.add_edges_from((n, i) for n in item.needs)
        if type(item) in last:
            dag.add_edge(last[type(item)], i)
        last[type(item)] = i
    return nx.transitive_closure_dag(dag)


def where(program: Program, name: str) -> int:
    return [i.name for i in program].index(name)


@pytest.mark.parametrize(("setting", "kind"), [(PLAIN, "all_reduce"), (SPLIT, "reduce_scatter")])
@pytest.mark.parametrize("linear", ["fc1", "qkv"])
def test_reduction_runs_beside_the_weight_gradient(setting: Keys, kind: str, linear: str) -> None:
    """The norm's backward needs the reduced gradient, the weight gradient does not."""
    norm = {"fc1": "mlp_norm_backward", "qkv": "attention_norm_backward"}[linear]
    for overlap in (True, False):
        program = layer_program(GPT, setting | {"tp_backward_overlap": overlap})["B"]
        dag, reduction = ordered(program), where(program, f"{linear}_grad_{kind}")
        assert dag.has_edge(where(program, f"{linear}_dgrad"), reduction)
        assert dag.has_edge(reduction, where(program, norm))
        assert dag.has_edge(reduction, where(program, f"{linear}_wgrad")) is not overlap
        assert reduction == where(program, f"{linear}_dgrad") + 1


@pytest.mark.parametrize("linear", ["fc1", "qkv"])
def test_saved_input_is_gathered_beside_the_input_gradient(linear: str) -> None:
    for overlap in (True, False):
        program = layer_program(GPT, SPLIT | {"tp_backward_overlap": overlap})["B"]
        dag, gather = ordered(program), where(program, f"{linear}_input_all_gather")
        dgrad = where(program, f"{linear}_dgrad")
        assert dag.has_edge(gather, where(program, f"{linear}_wgrad"))
        assert not dag.has_edge(gather, dgrad)
        assert dag.has_edge(dgrad, gather) is not overlap


def test_weight_gradients_alone_gather_beside_the_gemm_before() -> None:
    """fc1's saved input beside fc2's GEMM, QKV's beside the projection's; else in sequence."""
    for overlap in (True, False):
        program = layer_program(LLAMA, SPLIT | {"tp_backward_overlap": overlap})["W"]
        fc2, fc1, projection, qkv = "fc2_wgrad", "fc1_wgrad", "projection_wgrad", "qkv_wgrad"
        early = ["fc1_input_all_gather", fc2, fc1, "qkv_input_all_gather", projection, qkv]
        late = [fc2, "fc1_input_all_gather", fc1, projection, "qkv_input_all_gather", qkv]
        assert [i.name for i in program] == (early if overlap else late)


@pytest.mark.parametrize("phase", ["B", "I"])
def test_forward_runs_again_just_before_what_needs_it(phase: str) -> None:
    """Full: the whole layer before its backward; selective: the core before the core's."""
    full = layer_program(GPT, PLAIN | {"recompute": "full"})[phase]
    forward = [item.name for item in layer_program(GPT, PLAIN)["F"]]
    assert [item.name for item in full if item.phase == "R"] == forward
    assert [item.name for item in full[: len(forward)]] == forward

    selective = layer_program(GPT, PLAIN | {"recompute": "selective"})[phase]
    core = ["scores", "softmax", "attention_dropout", "context", "context_layout"]
    assert [item.name for item in selective if item.phase == "R"] == core
    begin = where(selective, "scores")
    assert [item.name for item in selective[begin:][:6]] == [*core, "context_weight_grad"]


def test_forward_collectives_are_hard_dependencies() -> None:
    for setting in (PLAIN, SPLIT):
        program = stage_programs(small(GPT, setting), [0, 1], True, True)["F"]
        for i, item in enumerate(program):
            if isinstance(item, Collective):
                assert item.needs == (i - 1,)
                assert i in program[i + 1].needs


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("t", [2, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("kind", [True, "copies"])
def test_overlap_cuts_pairs_and_keeps_bytes_flops_and_memory(
    model: Model, t: int, recompute: str, kind: bool | str
) -> None:
    """t pieces and t - 1 steps, but four of both where Transformer Engine reduces and scatters."""
    setting = SPLIT | {"tp": t, "recompute": recompute}
    plain = stage_programs(small(model, setting), [0, 1], True, True)
    cut = stage_programs(small(model, setting | {"tp_overlap": kind}), [0, 1], True, True)
    for phase, whole in plain.items():
        pieces = cut[phase]
        assert sent(pieces, t) == pytest.approx(sent(whole, t), rel=1e-14)
        for name in {i.name for i in whole if isinstance(i, Kernel)}:
            a, b = ([i for i in p if i.name == name] for p in (whole, pieces))
            assert sum(i.work.flops for i in a) == sum(i.work.flops for i in b)
        assert [m for i in whole for m in i.memory] == [m for i in pieces for m in i.memory]
    exposed = Counter(i.name for i in plain["F"] if isinstance(i, Collective) and i.layer >= 0)
    pieces_of = Counter(i.name for i in cut["F"] if isinstance(i, Collective) and i.layer >= 0)
    four = {name for name in exposed if kind is True and name.endswith("reduce_scatter")}
    assert len(four) == (2 if kind is True else 0)
    assert pieces_of == {n: c * (4 if n in four else t - 1) for n, c in exposed.items()}


def test_gather_cut_by_hand() -> None:
    """Step k + 1 travels while piece k multiplies; the next kernel follows the last piece."""
    program = layer_program(GPT, SPLIT | {"tp_overlap": True})["F"]
    norm = where(program, "mlp_norm")
    shape = program[norm + 2].work.shape
    rows, columns = B * S // 4, 256 // 4
    assert shape == (1, rows, columns, 64)
    moved = 2 * (rows * 64 + 64 * columns + rows * columns)  # the weights once per piece
    assert program[norm + 2].work.bytes == moved
    assert [
        (type(i).__name__, tuple(n - norm for n in i.needs)) for i in program[norm + 1 :][:8]
    ] == [
        ("Collective", (0,)),
        ("Kernel", ()),
        ("Collective", ()),
        ("Kernel", (1,)),
        ("Collective", ()),
        ("Kernel", (3,)),
        ("Kernel", (5,)),
        ("Kernel", ()),  # activation
    ]


def test_scatter_cut_by_hand() -> None:
    """Every piece but the rank's own leaves when it is done; what arrived is summed at the end."""
    program = layer_program(GPT, SPLIT | {"tp_overlap": "copies"})["F"]
    first = where(program, "fc2")
    summed = next(i.work for i in program if i.name == "fc2_reduce_scatter_sum")
    assert summed.bytes == 2 * (4 + 1) * (B * S // 4) * 64
    assert [(type(i).__name__, tuple(n - first for n in i.needs)) for i in program[first:]] == [
        ("Kernel", ()),
        ("Collective", (0,)),
        ("Kernel", ()),
        ("Collective", (2,)),
        ("Kernel", ()),
        ("Collective", (4,)),
        ("Kernel", ()),
        ("Kernel", (5,)),  # the sum
        ("Kernel", (5,)),  # residual
    ]


def test_pipelined_scatter_cut_by_hand() -> None:
    """Four pieces of the columns; each is scattered beside the next, the last one exposed."""
    program = layer_program(GPT, SPLIT | {"tp_overlap": True})["F"]
    first = where(program, "fc2")
    assert [(type(i).__name__, tuple(n - first for n in i.needs)) for i in program[first:]] == [
        ("Kernel", ()),
        ("Collective", (0,)),
        ("Kernel", ()),
        ("Collective", (2,)),
        ("Kernel", ()),
        ("Collective", (4,)),
        ("Kernel", ()),
        ("Collective", (6,)),
        ("Kernel", (7,)),  # residual
    ]
    work, step = program[first].work, program[first + 1]
    assert work.shape == (1, B * S, 64 // 4, 256 // 4)
    assert work.bytes == 2 * (B * S * (256 // 4) + (256 // 4) * (64 // 4) + B * S * (64 // 4))
    assert (step.algorithm, step.bytes) == ("pipeline", 2 * B * S * 64 / 4)


def test_backward_cuts_what_stands_exposed() -> None:
    """Row-parallel gathers are cut; column-parallel collectives run whole beside another GEMM."""
    program = layer_program(GPT, SPLIT | {"tp_overlap": True})["B"]
    assert Counter(i.name for i in program if isinstance(i, Collective)) == {
        "fc2_grad_all_gather": 3,
        "projection_grad_all_gather": 3,
        "fc1_input_all_gather": 1,
        "qkv_input_all_gather": 1,
        "fc1_grad_reduce_scatter": 1,
        "qkv_grad_reduce_scatter": 1,
    }


def test_gradients_reduced_before_the_optimizer() -> None:
    """Norms' two vectors and both row-parallel biases of fp32; nothing where each rank saw all."""

    def reduced(model: Model, sizes: Keys, *layers: int) -> float:
        job = small(model, sizes | {"layers_per_stage": layers})
        return replicated_gradient_bytes(job, 0)

    assert reduced(GPT, PLAIN, 3) == 0
    assert reduced(GPT, SPLIT, 3) == 4 * 64 * (3 * 6 + 2)
    assert reduced(LLAMA, SPLIT, 3, 1) == 4 * 64 * 3 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 3}, "heads = 8 cannot be split evenly by 3; choose another tp"),
        ({"sp": True, "sequence": 30}, "sequence = 30 cannot be split evenly by tp = 4"),
    ],
)
def test_what_cannot_be_split_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        share(small(GPT, PLAIN | {**change}))
    with pytest.raises(ValueError, match="use fewer stages"):
        stage_programs(small(GPT, PLAIN), [], first=False, last=False)
