"""Any combination of the ways to split a job: refused in one sentence, or what must hold holds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.analysis.breakdown import breakdown
from sim.analysis.critical_path import critical_path
from sim.analysis.idle import idle
from sim.graph import PHASES, Communication, Compute, Graph
from sim.memory.curve import peaks
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.run import Result, run
from sim.runs.stage_times import stage_timelines
from sim.timeline import Timeline

pytestmark = pytest.mark.slow

Choice = Mapping[str, Any]

DENSE = {
    "layers": 8, "hidden": 256, "heads": 8, "kv_heads": 4, "vocab": 1024, "sequence": 256,
    "attention": "flash", "position": "rope", "norm": "rms", "dropout": 0.0,
}  # fmt: skip
MOE = DENSE | {"experts": 8, "topk": 2, "gated": True, "ffn": 512, "expert_ffn": 256}
LATENT = {
    "kv_lora_rank": 64, "q_lora_rank": 128, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}  # fmt: skip
MLA = DENSE | {"kv_heads": 8, "mla": LATENT}
MODELS = {
    "dense": DENSE,
    "unfused": DENSE | {"attention": "unfused", "dropout": 0.1, "bias": True, "norm": "layer"},
    "moe": MOE,
    "moe_idle": MOE | {"load": {"kind": "histogram", "counts": [0, 1, 1, 1, 1, 1, 1, 1]}},
    "moe_unused": MOE | {"load": {"kind": "histogram", "counts": [3, 1, 0, 0, 0, 0, 0, 0]}},
    "shared": MOE | {"shared_experts": 1, "dense_layers": 2},
    "mla": MLA,
    "mla_unfused": MLA | {"attention": "unfused", "dropout": 0.1},
    "moe_mla": MLA | {"experts": 8, "topk": 2, "expert_ffn": 256, "dense_layers": 1},
    "mtp": DENSE | {"mtp": 1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "one_f_one_b": {},
    "gpipe": {},
    "interleaved_1f1b": {"chunks": 2},
    "interleaved_1f1b overlap": {"chunks": 2, "overlap": True},
    "looped_bfs": {"chunks": 2},
    "zb_h1": {},
    "zb_v": {},
    "dualpipe": {},
    "dualpipe_v": {},
    "pipedream": {},
}
SHARDED: dict[str, dict[str, Any]] = {
    "zero 0": {},
    "zero 1": {"zero": 1},
    "zero 1 gather": {"zero": 1, "overlap_param_gather": True},
    "zero 1 instances": {"zero": 1, "optimizer_instances": 2},
    "zero 2": {"zero": 2},
    "zero 2 gather": {"zero": 2, "overlap_param_gather": True},
    "zero 2 accumulate": {"zero": 2, "accumulate": True},
    "zero 3": {"zero": 3},
    "zero 3 accumulate": {"zero": 3, "accumulate": True},
    "zero 3 deepspeed": {"zero": 3, "deepspeed": {"stage3_max_live_parameters": 1e6}},
    "fsdp1": {"fsdp": {"kind": "fsdp1"}},
    "fsdp1 op": {"fsdp": {"kind": "fsdp1", "sharding": "SHARD_GRAD_OP", "wrap": 2}},
    "fsdp1 hybrid": {"fsdp": {"kind": "fsdp1", "sharding": "HYBRID_SHARD", "shard": 2}},
    "fsdp2": {"fsdp": {"kind": "fsdp2"}},
    "fsdp2 keep": {"fsdp": {"kind": "fsdp2", "reshard_after_forward": False, "shard": 2}},
    "fsdp2 once": {"fsdp": {"kind": "fsdp2", "shard": 2, "replicate": "once"}},
    "fsdp2 accumulate": {"fsdp": {"kind": "fsdp2", "wrap": "model"}, "accumulate": True},
    "yafsdp": {"fsdp": {"kind": "yafsdp"}},
    "ddp": {"first_bucket_mb": 1.0, "bucket_mb": 2.0, "gradient_as_bucket_view": False},
    "late": {"overlap_grad_reduce": False},
}
CONTEXT: dict[str, dict[str, Any]] = {
    "ring": {"cp_kind": "ring"},
    "ring contiguous": {"cp_kind": "ring", "cp_placement": "contiguous"},
    "ring striped": {"cp_kind": "ring", "cp_placement": "striped"},
    "ulysses": {"cp_kind": "ulysses"},
    "allgather": {"cp_kind": "allgather"},
    "allgather contiguous": {"cp_kind": "allgather", "cp_placement": "contiguous"},
    "usp": {"cp_kind": "usp", "ulysses": 2},
}
RERUN: dict[str, dict[str, Any]] = {
    "modules": {"modules": ["core_attn", "layernorm", "mlp_act"]},
    "mixture": {"modules": ["layernorm", "moe_act"], "every": 2},
    "every": {"every": 2},
    "block": {"method": "block", "layers": 1},
    "uniform": {"method": "uniform", "layers": 2},
    "op": {"modules": ["op"]},
}
NUMBERS: dict[str, dict[str, Any]] = {
    "tf32": {"dtype": "fp32", "matmul": "tf32"},
    "bf16 state": {"optimizer_state": {"master": "none", "first": "bf16", "second": "bf16"}},
    "fp8 state": {"optimizer_state": {"master": "fp16", "first": "fp8", "second": "fp16"}},
    "remainder": {"optimizer_state": {"master": "remainder"}, "grad_dtype": "bf16"},
}
PERTURBED: dict[str, dict[str, Any]] = {
    "slow rank": {"rank": 0, "compute": 1.4},
    "noise": {"rank": 0, "noise": 0.2},
    "lengths": {"lengths": [1.0, 0.5, 1.5]},
    "pause": {"rank": 0, "stall": "1 ms"},
    "slow links": {"rank": 0, "link": "nvlink", "bandwidth": 0.5},
}
KEYS: dict[str, list[Any]] = {
    "model": list(MODELS),
    "tied": [False, True],
    "schedule": list(SCHEDULES),
    "sharded": list(SHARDED),
    "context": list(CONTEXT),
    "tp": [1, 2, 4],
    "cp": [1, 2, 4],
    "pp": [1, 2, 4],
    "dp": [1, 2, 4],
    "ep": [1, 2, 4, 8],
    "etp": [1, 2],
    "sp": [True, False],
    "tp_overlap": [False, True, "copies"],
    "tp_backward_overlap": [True, False],
    "scatter_gather": [False, False, True],
    "p2p": ["direction", "pair", "batched"],
    "pair": ["shared", "serial", "fused"],
    "recompute": ["none", "selective", "full", *RERUN],
    "fp8": [None, None, None, "delayed", "tensorwise", "mxfp8"],
    "params": [False, True],
    "numbers": ["", "", "", *NUMBERS],
    "batch": [1, 2, 3],  # microbatches, as a multiple of pp
    "steps": [1, 1, 2],
    "host": [False, False, True],
    "order": ["tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-pp-dp-cp-ep"],
    "perturbed": ["", "", *PERTURBED],
}
MOST_RANKS = 16
MANY = int(os.environ.get("TRAINCAST_COMBINATIONS", "24"))
CLOSE = 1e-9
PASSES = [PHASES.index(name) for name in "FIWB"]


def settled(c: Choice) -> Choice:
    """The choice, without most of what is refused: or else few would run."""
    c = dict(c)
    if "mla" in c["model"]:
        c["dp"], c["cp"] = c["dp"] * c["cp"], 1
    if c["model"] == "unfused":
        c["context"], c["tp"] = "ulysses", min(c["tp"], 2)
    if c["schedule"] == "dualpipe" and c["pp"] == 1:
        c["schedule"] = "dualpipe_v"
    if c["schedule"].startswith("dualpipe"):
        c["batch"] = 2
    if c["model"] == "mtp" and {"fsdp", "zero"} & SHARDED[c["sharded"]].keys():
        c["sharded"] = "zero 2" if c["sharded"] < "zero" else "zero 1"
    replicas = c["dp"] * c["cp"]
    if replicas < 4:  # nothing to split in two instances, and no copies of shards
        c["sharded"] = {"zero 1 instances": "zero 1", "fsdp2 once": "fsdp2 keep"}.get(
            c["sharded"], c["sharded"]
        )
    sharded = SHARDED[c["sharded"]]
    if "fsdp" in sharded or sharded.get("zero", 0) > 1:
        if replicas == 1 or c["schedule"] == "pipedream":
            c["sharded"] = "zero 1"
    elif c["schedule"] == "pipedream":
        c["sharded"] = "zero 1" if "zero" in sharded else c["sharded"]
    if "moe" in c["model"] or c["model"] == "shared":
        c["sp"], c["order"] = c["tp"] > 1, KEYS["order"][0]
        c["etp"] = min(c["etp"], c["tp"])
        runs = replicas // SHARDED[c["sharded"]].get("optimizer_instances", 1)
        copy = SHARDED[c["sharded"]].get("fsdp", {}).get("shard", runs)
        c["ep"] = min(c["ep"], c["tp"] * copy // c["etp"])
        if c["sharded"] == "yafsdp" and c["tp"] * c["ep"] > 1:
            c["sharded"] = "fsdp2"
    mixed, split = "experts" in MODELS[c["model"]], SHARDED[c["sharded"]]
    if c["recompute"] == "mixture" and not mixed:
        c["recompute"] = "modules"
    if c["recompute"] == "op" and (mixed or c["model"] != "dense" or c["cp"] > 1):
        c["recompute"] = "every"
    if c["recompute"] == "uniform" and ("fsdp" in split or split.get("zero", 0) > 1):
        c["recompute"] = "block"
    if c["numbers"] == "tf32" or (c["fp8"] and c["params"] and c["numbers"] != "fp8 state"):
        c["fp8"] = None if c["numbers"] else c["fp8"]
    c["sp"] = c["sp"] and c["tp"] > 1
    c["tp_overlap"] = c["tp_overlap"] and c["sp"] and c["etp"] == 1
    c["scatter_gather"] = c["scatter_gather"] and not c["sp"]
    return c


def recipe_of(c: Choice) -> dict[str, Any]:
    """The recipe of a choice; what only goes with a degree above 1 is left out at 1."""
    name, *_ = c["schedule"].split()
    moe = "moe" in c["model"] or c["model"] == "shared"
    steps = {} if name == "pipedream" else {"steps": c["steps"]}
    return {
        "model": MODELS[c["model"]] | {"tied": c["tied"]},
        "cluster": {"topology": "dgx_h100", "gpus": c["tp"] * c["cp"] * c["pp"] * c["dp"]},
        "parallelism": {axis: c[axis] for axis in ("tp", "cp", "pp", "dp")}
            | (CONTEXT[c["context"]] if c["cp"] > 1 else {})
            | ({"ep": c["ep"], "etp": c["etp"]} if moe else {})
            | {key: c["tp"] > 1 and c[key] for key in ("sp", "tp_overlap", "scatter_gather")}
            | {key: c[key] for key in ("tp_backward_overlap", "p2p", "order")} | {"bucket_mb": 2.0}
            | SHARDED[c["sharded"]],
        "schedule": {"name": name, "pair": c["pair"]} | SCHEDULES[c["schedule"]],
        "training": {"global_batch": c["dp"] * c["pp"] * c["batch"],
            "recompute": RERUN.get(c["recompute"], c["recompute"]), **NUMBERS.get(c["numbers"], {}),
            **({"fp8": {"recipe": c["fp8"], "params": c["params"]}} if c["fp8"] else {})},
        "perturbations": [PERTURBED[c["perturbed"]]] if c["perturbed"] else [],
        "simulation": {"host": c["host"]} | steps,
    }  # fmt: skip


def simulated(data: Mapping[str, Any], **simulation: object) -> Result:
    """The run of a recipe."""
    changed = {**data, "simulation": {**data["simulation"], **simulation}}
    return run(recipe_file.parse(changed))


def passes(graph: Graph) -> float:
    """FLOPs of forward and backward on all ranks of the job, recomputation apart."""
    each = np.array([work.flops if isinstance(work, Compute) else 0.0 for work in graph.works])
    stands_for = np.ones(int(graph.rank.max()) + 1)
    for rank, ranks in graph.stands_for.items():
        stands_for[rank] = ranks
    mine = np.isin(graph.phase, PASSES)
    return float(each[graph.work[mine]] @ stands_for[graph.rank[mine]])


@cache
def passes_alone(model: str, tied: bool, microbatches: int) -> float:
    """The same of a job on one GPU."""
    alone = {
        "model": MODELS[model] | {"tied": tied},
        "cluster": {"topology": "dgx_h100", "gpus": 1},
        "training": {"global_batch": microbatches},
    }
    return passes(run(recipe_file.parse(alone)).timeline.graph)


def check_work(c: Choice, recipe: Recipe, graph: Graph) -> None:
    """Splitting a job neither makes nor loses FLOPs: those of one GPU, over the ranks."""
    if c["model"] in ("moe_idle", "moe_unused"):
        return  # tokens are whole, and shared out once in every group
    if "mla" in c["model"] and c["tp"] > 1 and not c["sp"]:
        return  # every tensor-parallel rank makes the latents of all tokens
    steps = (recipe.simulation.steps or 1) if recipe.flushed else 1
    batch = recipe.planned * steps * (recipe.parallelism.dp or 1)
    alone = passes_alone(c["model"], c["tied"], batch)
    assert passes(graph) == pytest.approx(alone, rel=CLOSE)


def check_parts(graph: Graph, whole: bool) -> None:
    """Members of a communication agree on it, and are the ranks that it names."""
    op = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    single = np.diff(graph.part_start)[op] == 1
    own, joint = graph.work[op[single]], graph.part_work[graph.part[single]]
    for a, b in {(int(a), int(b)) for a, b in zip(own, joint, strict=True) if a != b}:
        one, two = graph.works[a], graph.works[b]
        assert isinstance(one, Communication), (one, two)
        assert isinstance(two, Communication), (one, two)
        assert one.bytes == two.bytes, (one, two)
        assert one.collective == two.collective, (one, two)
    members: list[list[int]] = [[] for _ in graph.part_work]
    for part, rank in zip(graph.part.tolist(), graph.rank[op].tolist(), strict=True):
        members[part].append(rank)
    for part, ranks in enumerate(members):
        work = graph.works[graph.part_work[part]]
        assert isinstance(work, Communication)
        assert len(set(ranks)) == len(ranks), (work, ranks)
        assert set(ranks) <= set(work.ranks), (work, ranks)
        assert not whole or set(ranks) == set(work.ranks), (work, ranks)


def check_memory(graph: Graph) -> None:
    """What a rank allocates of a category it gives back."""
    row = graph.rank[np.repeat(np.arange(len(graph)), np.diff(graph.memory_start))]
    cell = row * len(graph.categories) + graph.memory_category
    left = np.bincount(cell, graph.memory_bytes)
    most = np.bincount(cell, np.abs(graph.memory_bytes))
    for k in np.flatnonzero(np.abs(left) > CLOSE * most).tolist():
        rank, category = divmod(k, len(graph.categories))
        pytest.fail(f"rank {rank} keeps {left[k]:g} bytes of {graph.categories[category]}")


def check_time(timeline: Timeline) -> None:
    """Causes of idling, shares of time and the critical path each add up to the step."""
    step = timeline.seconds
    found, times = idle(timeline), breakdown(timeline)
    gaps = sum(found.by_cause().values(), np.zeros(len(found.ranks)))
    assert np.abs(gaps - (step - times.compute)).max() <= CLOSE * step
    shown = times.compute + times.empty + sum(times.exposed.values(), np.zeros(len(times.ranks)))
    assert np.abs(shown - step).max() <= CLOSE * step
    assert sum(critical_path(timeline).seconds.values()) == pytest.approx(step, rel=CLOSE)


def check_summary(figures: Mapping[str, Any]) -> None:
    """Shares are between 0 and 1, and no part of a step is longer than it."""
    step, bubble = figures["step_time_s"], figures["bubble"]
    assert step > 0
    parts = [*bubble["by_cause_s"].values(), *figures["critical_path_s"].values()]
    for spread in figures["time_s"].values():
        table = spread if "mean" not in spread else {"": spread}
        parts += [each[key] for each in table.values() for key in ("mean", "max")]
    shares = [bubble["idle_share_of_step"], figures["mfu"], figures["hfu"]]
    shares += [part / step for part in parts]
    assert min(shares) >= 0, json.dumps(figures)
    assert max(shares) <= 1 + CLOSE, json.dumps(figures)
    assert sum(bubble["by_cause_s"].values()) == pytest.approx(
        bubble["idle_share_of_step"] * step, rel=CLOSE, abs=CLOSE * step
    )
    assert sum(figures["critical_path_s"].values()) == pytest.approx(step, rel=CLOSE)


def check_folding(folded: Timeline, whole: Timeline) -> None:
    """Every op of a folded rank runs when it does with all ranks simulated."""
    assert folded.seconds == pytest.approx(whole.seconds, rel=CLOSE)
    for rank in folded.graph.ranks().tolist():
        mine, theirs = (np.flatnonzero(of.graph.rank == rank) for of in (folded, whole))
        assert len(mine) == len(theirs)
        for one, two in ((folded.start, whole.start), (folded.end, whole.end)):
            assert np.abs(one[mine] - two[theirs]).max() <= CLOSE * whole.seconds


def check(c: Choice) -> str:
    """All that must hold of a choice; the sentence that refuses it, or nothing."""
    data, recipe = recipe_of(c), None
    try:
        recipe = recipe_file.parse(data)
        result = run(recipe)
    except ValueError as error:
        said = str(error)
        assert re.fullmatch(r".*\w.*", said), said
        assert recipe is None or "deadlock: " in said, f"refused late: {said}"
        return said
    timeline = result.timeline
    check_work(c, recipe, timeline.graph)
    check_memory(timeline.graph)
    check_time(timeline)
    check_summary(result.summary)
    check_parts(timeline.graph, whole=not (result.lanes.axes or result.lanes.alike))
    again = simulated(data).timeline
    assert np.array_equal(again.start, timeline.start)
    assert np.array_equal(again.end, timeline.end)
    if result.lanes.axes:
        whole = simulated(data, fold="none").timeline
        check_parts(whole.graph, whole=True)
        check_memory(whole.graph)
        check_folding(timeline, whole)
    return ""


PLAIN = {key: values[0] for key, values in KEYS.items()} | {"sp": False}
FOUND: list[dict[str, Any]] = [
    {"schedule": "dualpipe_v", "pp": 2, "dp": 2, "batch": 2, "sharded": "zero 2"},  # B, I and W
    {"schedule": "dualpipe_v", "dp": 2, "batch": 2, "sharded": "fsdp2"},  # two stages on one rank
    {"schedule": "zb_h1", "dp": 2, "sharded": "zero 3 deepspeed"},  # I without an embedding
    {"model": "moe", "schedule": "zb_v", "cp": 2, "pp": 2, "ep": 2},  # times of a stage with both
    {"model": "moe_unused", "dp": 4, "ep": 4, "sharded": "fsdp2"},  # ranks without any tokens
    {"model": "moe_unused", "dp": 4, "ep": 4, "fp8": "delayed"},  # fewer than no bytes
    {"model": "moe", "tp": 2, "dp": 2, "ep": 4, "sp": True, "sharded": "zero 3"},  # one copy each
    {"model": "mtp", "schedule": "zb_h1", "pp": 2},  # two heads, whose weight gradients come later
    {"schedule": "zb_v", "pp": 2, "cp": 2, "fp8": "delayed"},  # maxima of a stage alone
    {"dp": 4, "sharded": "zero 1 instances", "numbers": "fp8 state", "batch": 2},  # both at once
    {"dp": 4, "sharded": "fsdp2 once", "numbers": "bf16 state", "batch": 3},
    {"model": "moe", "dp": 4, "ep": 2, "sharded": "zero 1 instances", "numbers": "tf32"},
    # seconds below 0 by rounding
    {"model": "shared", "cp": 2, "dp": 2, "ep": 2, "context": "ulysses", "sharded": "fsdp2 once",
     "schedule": "looped_bfs", "tp_backward_overlap": False, "recompute": "mixture",
     "numbers": "bf16 state", "perturbed": "noise"},
    {"model": "moe_idle", "dp": 2, "ep": 2},  # an expert without tokens has parameters all the same
]  # fmt: skip
"""Combinations that once failed, or that once were refused."""


@pytest.mark.parametrize("of", FOUND, ids=str)
def test_what_once_failed_holds(of: Choice) -> None:
    assert not check(PLAIN | of)


def test_experts_need_pipeline_ranks_outermost() -> None:
    """Or groups of ep, etp and edp would cross stages: once a deadlock."""
    way = {"model": "moe", "tp": 2, "pp": 2, "sp": True, "order": "tp-pp-dp-cp-ep"}
    assert "must end with pp" in check(PLAIN | way)


def test_what_stays_gathered_is_there_once() -> None:
    """However many forwards come before the first backward."""
    way = PLAIN | {"schedule": "gpipe", "dp": 2, "sharded": "fsdp2"}
    held = [
        peaks(simulated(recipe_of(way | {"batch": batch})).timeline)[0].by_category
        for batch in (1, 3)
    ]
    assert held[0]["gathered_parameters"] == held[1]["gathered_parameters"]


@pytest.mark.parametrize(
    "way",
    [
        {"dp": 4, "ep": 4},
        {"dp": 2, "cp": 2, "ep": 4},
        {"tp": 2, "sp": True, "dp": 2, "ep": 2, "etp": 2},
        {"tp": 2, "sp": True, "dp": 2, "ep": 4},
    ],
    ids=str,
)
def test_a_stage_alone_takes_what_it_takes_in_a_step(way: Choice) -> None:
    """Its exchanges of tokens included: searched schedules rest on these times."""
    result = simulated(recipe_of(PLAIN | {"model": "moe"} | way), spread=False)
    timeline, layers = result.timeline, range(result.job.model.layers)
    forward = np.flatnonzero(timeline.graph.phase == PHASES.index("F"))
    took = timeline.end[forward].max() - timeline.start[forward].min()
    alone = stage_timelines(result.job, result.cluster, layers, first=True, last=True)
    assert alone["F"].seconds == pytest.approx(took, rel=CLOSE)


DEGREES = [
    dict(zip(("tp", "cp", "pp", "dp"), of, strict=True))
    for of in product(*(KEYS[axis] for axis in ("tp", "cp", "pp", "dp")))
    if prod(of) <= MOST_RANKS
]
CHOICES = st.builds(
    lambda c, degrees, bend: settled(c | degrees) if bend else c | degrees,
    st.fixed_dictionaries({key: st.sampled_from(values) for key, values in KEYS.items()}),
    st.sampled_from(DEGREES),
    st.sampled_from([True, True, True, False]),
)


@settings(max_examples=MANY, deadline=None, derandomize=True)
@given(c=CHOICES)
def test_what_must_hold_holds_in_any_combination(c: Choice) -> None:
    """What is drawn, and whether it ran, `pytest --hypothesis-show-statistics` tells."""
    event("refused" if check(c) else "ran")
