"""Recipes of models with experts or latent attention: what they mean, refusals, a run."""

from __future__ import annotations

import tomllib

import pytest

from sim.model.routing import ExpertLoad
from sim.model.sizes import Mla, active_parameters, model_flops
from sim.recipe import legality, recipe_file
from sim.recipe.recipe import Recipe
from sim.runs.check import check
from sim.runs.run import job_of, run
from sim.runs.stage_times import stage_seconds

TEXT = """
cluster = { topology = "dgx_h100", gpus = 4 }
parallelism.pp = 2
training.global_batch = 8
[model]
layers = 4
hidden = 512
heads = 8
kv_heads = 4
vocab = 1024
norm = "rms"
activation = "silu"
position = "rope"
sequence = 256
experts = 8
topk = 2
expert_ffn = 384
"""
MLA = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
ZIPF = {"kind": "zipf", "s": 1.5}


def parse(**overrides: object) -> Recipe:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return recipe_file.parse(tomllib.loads(TEXT), overrides=given)


def test_what_is_left_out_follows() -> None:
    model = parse().architecture
    assert (model.ffn, model.shared_experts, model.dense_layers) == (384, 0, 0)
    assert (model.capacity_factor, model.load, model.mla) == (None, ExpertLoad(), None)
    assert (model.bias, model.gated) == (False, True)
    latent = parse(model__mla=MLA, model__kv_heads=8).architecture
    assert (latent.mla, latent.head_dim, latent.qkv_bias) == (Mla(0, 64, 32, 16, 32), 48, False)


@pytest.mark.parametrize(
    "load",
    [ZIPF, {"kind": "balanced"}, {"kind": "dirichlet", "alpha": 0.3},
     {"kind": "histogram", "counts": [1, 2, 3, 4, 5, 6, 7, 8.5]}],
)  # fmt: skip
def test_a_complete_recipe_reads_back_equal(load: dict[str, object]) -> None:
    """With its nested tables; a Dirichlet load is drawn with the simulation's seed."""
    recipe = parse(
        model__load=load, model__mla=MLA, model__kv_heads=8, model__capacity_factor=1.5,
        simulation__seed=7,
    )  # fmt: skip
    again = recipe_file.parse(tomllib.loads(recipe_file.dump(recipe)))
    assert again == recipe
    assert again.architecture == recipe.architecture
    assert again.architecture.load.seed == 7
    assert hash(again.architecture) == hash(recipe.architecture)


REFUSED = [
    ({"topk": None}, "model.topk, the experts per token, is missing; model.experts needs it"),
    ({"topk": 9}, "model.topk = 9 is more than model.experts = 8"),
    ({"topk": 0}, "model.topk = 0 must be at least 1"),
    ({"experts": None}, "model.topk needs model.experts; give it, or leave topk out"),
    ({"experts": 65_537}, "model.experts = 65537 must be at most 65,536"),
    ({"expert_ffn": None}, "model.expert_ffn is missing"),
    ({"dense_layers": 4}, "model.dense_layers = 4 leaves none of model.layers = 4"),
    ({"dense_layers": 1}, "model.ffn is missing; a gated MLP has no default width"),
    ({"bias": True, "shared_experts": 1}, "model.bias = true is not simulated with model.shared"),
    ({"capacity_factor": 0.0}, "model.capacity_factor = 0.0 must be greater than 0"),
    ({"load": "zipf"}, 'model.load = "zipf" must be a table'),
    ({"load": {}}, "model.load.kind is missing"),
    ({"load": {"kind": "zpf"}}, "model.load.kind = \"zpf\" must be 'balanced', 'zipf'"),
    ({"load": {"kind": "zipf"}}, 'model.load.s is missing; kind = "zipf" needs it'),
    ({"load": {"kind": "zipf", "s": -1}}, "model.load.s = -1 must be at least 0"),
    ({"load": {"kind": "zipf", "a": 1}}, "unknown key model.load.a; it has alpha, counts, kind, s"),
    ({"load": {**ZIPF, "alpha": 1.0}}, 'model.load.alpha does not belong to kind = "zipf"'),
    ({"load": {"kind": "histogram", "counts": [1]}}, "model.load.counts has 1 entries"),
    ({"load": {"kind": "histogram", "counts": [0] * 8}}, "model.load.counts are all 0"),
    ({"load": {"kind": "histogram", "counts": [-1] * 8}}, "model.load.counts"),
    ({"mla": MLA}, "model.kv_heads = 4 must be model.heads = 8 with model.mla"),
    ({"mla": {}, "kv_heads": 8}, "model.mla.kv_lora_rank is missing"),
    ({"mla": {**MLA, "x": 1}, "kv_heads": 8}, "unknown key model.mla.x; it has kv_lora_rank"),
    ({"mla": {**MLA, "v_head_dim": 0}}, "model.mla.v_head_dim = 0 must be at least 1"),
    ({"mla": MLA, "kv_heads": 8, "head_dim": 64}, "model.head_dim = 64 must be qk_nope_head_dim"),
    ({"mla": MLA, "kv_heads": 8, "position": "learned"}, 'model.position = "learned" is not'),
    ({"mla": MLA, "kv_heads": 8, "qkv_bias": True}, "model.qkv_bias = true is not simulated"),
    ({"mtp": 65}, "model.mtp = 65 must be at most 64"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
def test_a_refusal_is_one_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        parse(**{f"model__{key}": value for key, value in change.items()})
    assert sentence in str(error.value)


SPLITS = [
    ({"ep": 3}, "parallelism.ep x etp = 3 x 1 must divide the ranks of a stage, tp x cp x dp = 2"),
    ({"ep": 2, "etp": 2}, "parallelism.ep x etp = 2 x 2 must divide"),
    ({"tp": 2, "dp": 1}, "parallelism.sp must be true for model.experts with tp > 1"),
]


def test_splits_of_experts_are_checked() -> None:
    recipe = parse()
    for change, sentence in SPLITS:
        split = recipe.parallelism.model_copy(update=change)
        with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
            legality.check(recipe.model_copy(update={"parallelism": split}))
        assert sentence in str(error.value)
    for key, value, sentence in (
        ("experts", 7, "model.experts = 7 cannot be split over parallelism.ep = 2; ep must divide"),
        ("experts", None, "parallelism.ep = 2 needs model.experts to split"),
    ):
        update = {
            "model": recipe.model.model_copy(update={key: value}),
            "parallelism": recipe.parallelism.model_copy(update={"ep": 2}),
        }
        with pytest.raises(ValueError, match=sentence):
            legality.check(recipe.model_copy(update=update))


def test_a_mixture_runs() -> None:
    """FLOPs in the summary are those of active experts; memory is what check foretells."""
    recipe = parse(parallelism__zero=1)
    result = run(recipe)
    summary, model = result.summary, recipe.architecture
    done = summary["tflops_per_gpu"] * 1e12 * 4 * summary["step_time_s"]
    assert done == pytest.approx(model_flops(model, 8, 256), rel=1e-12)
    assert 6 * active_parameters(model) * 8 * 256 == pytest.approx(done, rel=0.2)
    foretold = {entry["rank"]: entry["peak_bytes"] for entry in check(recipe)["memory"]}
    assert {e["rank"]: e["peak_bytes"] for e in summary["memory"]} == pytest.approx(foretold)


def test_dense_and_routed_stages_take_their_own_time() -> None:
    """A dense layer has a fraction of the others' work: its stage is faster, and check knows."""
    recipe = parse(
        model__dense_layers=2, model__ffn=384, training__recompute="full", model__shared_experts=1
    )
    result = run(recipe)
    four = parse(parallelism__pp=4, model__dense_layers=2, model__ffn=384)
    forward = stage_seconds(job_of(four), result.cluster)["F"]
    assert isinstance(forward, list)
    assert 1.2 * forward[1] < forward[2]  # neither has an end of the model
    foretold = {entry["rank"]: entry["peak_bytes"] for entry in check(recipe)["memory"]}
    simulated = {e["rank"]: e["peak_bytes"] for e in result.summary["memory"]}
    assert simulated == pytest.approx(foretold)


def test_an_uneven_load_costs_little_where_all_experts_are_on_one_rank() -> None:
    """All experts are here: as many FLOPs, in other waves of tiles; less to do if tokens drop."""
    even, uneven, capped = (
        run(parse(model__sequence=8192, **given)).timeline.seconds
        for given in (
            {},
            {"model__load": ZIPF},
            {"model__load": ZIPF, "model__capacity_factor": 1.0},
        )
    )
    assert capped < 0.99 * even
    assert uneven == pytest.approx(even, rel=0.05)
    assert uneven != even


def test_latent_attention_is_not_shared_by_context_parallel_ranks() -> None:
    said = "parallelism.cp = 2 is not simulated yet with model.mla; it must be 1"
    with pytest.raises(ValueError, match=f"^{said}$"):
        parse(model__mla=MLA, model__kv_heads=8, parallelism__cp=2)
    assert parse(parallelism__cp=2).parallelism.cp == 2


def test_latent_attention_runs() -> None:
    dense = {"model__experts": None, "model__topk": None, "model__expert_ffn": None}
    recipe = parse(
        **dense, model__ffn=384, model__mla={**MLA, "q_lora_rank": 48}, model__kv_heads=8,
        parallelism__tp=2, parallelism__sp=True,
    )  # fmt: skip
    assert run(recipe).timeline.seconds > 0
