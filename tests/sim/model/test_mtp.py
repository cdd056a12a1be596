"""Multi-token prediction: parameters, work, memory and collectives against sums worked out here."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.builder.activations import layer_bytes, stage_bytes
from sim.builder.stage import stage_programs
from sim.builder.strategies.data import buckets
from sim.graph import Communication, Compute, Graph
from sim.machine import cluster as clusters
from sim.model.sizes import (
    active_parameters,
    layer_flops,
    model_flops,
    model_of,
    parameters,
    total_parameters,
)
from sim.recipe import presets, recipe_file
from sim.runs.check import check
from sim.runs.run import job_of, prepare, run
from sim.strategies.recompute import rule
from sim.strategies.recompute.declare import WORDS
from tests.recipes import built, parsed
from tests.small import replicas

H, S, VOCAB, LAYERS = 256, 128, 512, 4
MODEL: dict[str, Any] = {
    "layers": LAYERS, "hidden": H, "heads": 8, "kv_heads": 4, "ffn": 768, "vocab": VOCAB,
    "sequence": S, "attention": "flash", "position": "rope", "norm": "rms", "gated": True,
    "tied": False, "vocab_padding": 1,
}  # fmt: skip
MOE = MODEL | {"experts": 4, "topk": 2, "expert_ffn": 128, "dense_layers": 1}


def recipe(depth: int, model: dict[str, Any] = MODEL, **parallelism: Any) -> Any:
    return parsed(model | ({"mtp": depth} if depth else {}), 8, **parallelism)


def graph(depth: int, model: dict[str, Any] = MODEL, **parallelism: Any) -> Graph:
    return built(recipe(depth, model, **parallelism))


def flops(of: Graph) -> float:
    each = np.array([w.flops if isinstance(w, Compute) else 0.0 for w in of.works])
    return float(each[of.work].sum())


def messages(of: Graph) -> Counter[tuple[str, str, float, int]]:
    """How many communications of each collective, dimension, bytes and group there are."""
    found = Counter[tuple[str, str, float, int]]()
    for k in of.part_work.tolist():
        work = of.works[k]
        assert isinstance(work, Communication)
        found[work.collective, work.dimension, work.bytes, len(work.ranks)] += 1
    return found


def test_deepseek_v3_has_the_parameters_it_says() -> None:
    """671 B, 37 B of them active; its module 11.5 B beside copies of embedding and head, 0.9 B each
    (README_WEIGHTS.md of the published weights), which make the 685 B that Hugging Face counts."""
    main = model_of(presets.complete(presets.preset("deepseek-v3")))
    both = replace(main, mtp=1)
    more = total_parameters(both) - total_parameters(main)
    assert total_parameters(main) == pytest.approx(671.0e9, rel=1e-3)
    assert more == pytest.approx(11.5e9, rel=0.015)
    copies = 2 * main.vocab * main.hidden
    assert copies / 2 == pytest.approx(0.9e9, rel=0.05)
    assert total_parameters(both) + copies == pytest.approx(685e9, rel=1e-3)
    expert = 3 * 7168 * 2048
    assert active_parameters(both) - active_parameters(main) == more - (256 - 8) * expert


@pytest.mark.parametrize("stated", [0, 1, None])
def test_a_config_json_says_how_many_depths(stated: int | None, tmp_path: Path) -> None:
    text = {"model_type": "deepseek_v3", "num_nextn_predict_layers": stated}
    (tmp_path / "config.json").write_text(json.dumps(text))
    numbers = recipe_file.hugging_face(tmp_path / "config.json")
    assert model_of(presets.complete({**numbers, "sequence": 64})).mtp == (stated or 0)


@pytest.mark.parametrize("model", [MODEL, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_graph_has_the_models_flops(model: dict[str, Any], depth: int) -> None:
    """Of each depth: a layer like the last, 2h x h, and a head. Attention is causal in the graph,
    so that half of it is left out."""
    of = model_of(presets.complete(model | {"mtp": depth}))
    plain = replace(of, mtp=0)
    more = model_flops(of, 8, S) - model_flops(plain, 8, S)
    each = layer_flops(plain, 8, S, LAYERS - 1) + 2 * 8 * S * (2 * H * H + H * VOCAB)
    assert more == 3 * depth * each
    core = 4 * 8 * S**2 * H  # forward, without the mask; flash kernels run half of it, and 1 + 2.5
    found = flops(graph(depth, model)) - flops(graph(0, model))
    assert found == pytest.approx(more + depth * core * (3.5 / 2 - 3), rel=1e-12)
    one, other = (rule.flops(m, 8, S, WORDS["full"]) for m in (of, plain))
    assert one - other == depth * layer_flops(plain, 8, S, LAYERS - 1)


@pytest.mark.parametrize("model", [MODEL, MOE], ids=["dense", "experts"])
def test_the_last_stage_holds_the_depths(model: dict[str, Any]) -> None:
    """Layer, projection, three norms, and an embedding where none is there."""
    of = model_of(presets.complete(model | {"mtp": 2}))
    plain = replace(of, mtp=0)
    layer = parameters(plain, 2, (LAYERS - 1,), False, False).total
    for first, tied in ((True, False), (False, False), (False, True)):
        one, other = (
            parameters(replace(m, tied=tied), 2, (2, 3), first, last=True).total
            for m in (of, plain)
        )
        copy = 0 if first or tied else VOCAB * H // 2
        assert one - other == 2 * (layer + H * H + 3 * H) + copy
    assert parameters(of, 2, (0, 1), True, last=False) == parameters(plain, 2, (0, 1), True, False)


def test_a_depth_keeps_a_layer_two_norms_a_projection_and_logits() -> None:
    """bf16: residual stream twice and its double, once; the head's norm and input, fp32 logits."""
    of = model_of(presets.complete(MODEL | {"mtp": 2}))
    job = job_of(recipe(2))
    kept = stage_bytes(job, (2, 3), first=False, last=True)
    plain = stage_bytes(replace(job, model=replace(of, mtp=0)), (2, 3), first=False, last=True)
    x = 2 * S * H
    assert kept["activations"] - plain["activations"] == 2 * (layer_bytes(job, 3) + 4 * x)
    assert kept["logits"] == 3 * plain["logits"] == 3 * (2 * x + 4 * S * VOCAB)


@pytest.mark.parametrize("split", [{"pp": 2}, {"pp": 2, "tp": 2, "sp": True}, {"dp": 2, "zero": 1}])
def test_memory_of_the_timeline_is_that_of_the_check(split: dict[str, Any]) -> None:
    of = recipe(2, **split)
    found = {entry["rank"]: entry["peak_bytes"] for entry in run(of).summary["memory"]}
    said = {entry["rank"]: entry["peak_bytes"] for entry in check(of)["memory"]}
    assert found == pytest.approx(said, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
def test_the_two_embeddings_sum_their_gradients(tied: bool) -> None:
    """Between first and last stage, fp32; alone on a rank there is nothing to sum."""
    model = MODEL | {"tied": tied}
    found = messages(graph(1, model, pp=2))
    assert found["all_reduce", "embedding", 4.0 * VOCAB * H, 2] == 1
    assert not any(axis == "embedding" for _, axis, *_ in messages(graph(1, model)))
    plain = {axis for _, axis, *_ in messages(graph(0, model, pp=2))}
    assert ("embedding" in plain) == tied


def test_collectives_of_a_depth_under_tensor_parallelism() -> None:
    """Per microbatch all-gathers of the projection's input (forward and for the weight gradient),
    of its output and of that one's gradient; and a reduce-scatter of the input's gradient."""
    split = {"tp": 2, "sp": True}
    more = messages(graph(1, **split)) - messages(graph(0, **split))
    x = 2.0 * S * H
    wide = ("all_gather", "tp", 2 * x, 2), ("reduce_scatter", "tp", 2 * x, 2)
    assert [more[key] for key in wide] == [8 * 2, 8]
    plain = messages(graph(0, **split))["all_gather", "tp", x, 2]
    layer = (plain - 8 * 3) // LAYERS  # less those of the head and the embedding's gradient
    assert more["all_gather", "tp", x, 2] == layer + 8 * (2 + 2 + 1)


def test_gradients_are_reduced_once() -> None:
    """Those of the shared head and embedding too: all parameters, fp32, whatever the buckets."""
    for bucket in (0.1, 40.0):
        found = messages(graph(2, dp=2, bucket_mb=bucket))
        total = sum(size * n for (_, axis, size, _), n in found.items() if axis == "dp")
        of = model_of(presets.complete(MODEL | {"mtp": 2}))
        assert total == 4 * parameters(of, 1, range(LAYERS), True, True).total


def test_the_shared_heads_gradient_is_whole_with_its_last_product() -> None:
    """One bucket per gradient, and one that is the head's."""
    vocab = 640  # no other matrix has so many elements
    job = job_of(recipe(2, MODEL | {"vocab": vocab}, pp=2, dp=2))
    program = stage_programs(job, job.layers(1), first=False, last=True)["B"]
    found = buckets(program, job.held(1), replicas(2, bucket=4.0))
    heads = [i for i, item in enumerate(program) if item.name == "head_wgrad"]
    assert len(heads) == 3
    assert [b.after for b in found if b.parameters == vocab * H] == heads[-1:]
    assert sum(b.parameters for b in found) == job.held(1).total


def test_a_forward_leaves_what_the_stage_keeps() -> None:
    job = job_of(recipe(2))
    programs = stage_programs(job, range(LAYERS), first=True, last=True)
    kept = stage_bytes(job, range(LAYERS), first=True, last=True)
    left = Counter[str]()
    for item in programs["F"]:
        for change in item.memory:
            left[change.category] += change.bytes  # type: ignore[assignment]
    assert {name: left[name] for name in kept} == kept


def test_no_depth_changes_nothing() -> None:
    none, absent = (
        prepare(job_of(recipe(0, MODEL | extra)), clusters.load("dgx_h100", 1))[1]
        for extra in ({"mtp": 0}, {})
    )
    assert none.works == absent.works
    assert none.names == absent.names
    assert np.array_equal(none.work, absent.work)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"position": "learned"}, 'not simulated with model.position = "learned"'),
        ({"mtp": -1}, "model.mtp = -1 must be at least 0"),
    ],
)
def test_a_refusal_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe(0, MODEL | {"mtp": 1} | change)
    assert sentence in str(error.value)


def test_sharded_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not simulated with parallelism\.fsdp"):
        recipe(1, dp=2, fsdp={"kind": "fsdp2"})
