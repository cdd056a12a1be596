"""Layers without embedding, head and loss; SGD; no clipping."""

import numpy as np
import pytest

from sim.builder.persistent import persistent
from sim.builder.training_step import training_step
from sim.graph import Communication, Graph
from sim.model.sizes import model_flops, total_parameters
from sim.recipe import recipe_file
from sim.runs.run import job_of

L, H, S, B = 6, 64, 32, 3
RECIPE = {
    "model": {"layers": L, "hidden": H, "heads": 4, "sequence": S, "vocab": 0},
    "cluster": {"topology": "dgx_a100", "gpus": 2},
    "training": {"micro_batch": B, "global_batch": 2 * B, "dtype": "fp32", "optimizer": "sgd",
        "clip": False},
}  # fmt: skip


def graph(**overrides: object) -> Graph:
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return training_step(job_of(recipe_file.parse(RECIPE, overrides=given)))


def names(of: Graph) -> set[str]:
    return {of.names[k] for k in np.unique(of.name)}


def test_parameters_and_flops_are_those_of_the_layers():
    """Narayanan et al. 2021, equations 2 and 3, without the terms of vocabulary and positions."""
    recipe = recipe_file.parse(RECIPE)
    model = recipe.architecture
    assert total_parameters(model) == L * (12 * H**2 + 13 * H)
    assert model_flops(model, B, S) == 72 * B * L * S * H**2 * (1 + S / (6 * H))
    assert recipe.model.position == "none"


def test_nothing_but_layers_runs():
    of = graph()
    layers = {"embedding", "final_norm", "head", "loss_max", "loss", "positions"}
    assert not names(of) & layers
    assert not [name for name in names(of) if name.startswith(("embedding", "head", "loss"))]
    assert {"qkv", "attention", "fc2_wgrad"} <= names(of)


def test_fsdp_has_no_root_to_gather():
    """A gather for the forward and one for the backward of every layer, and a reduction."""
    of = graph(parallelism__fsdp={"kind": "fsdp2"}, simulation__fold="none")
    sent = [of.works[w] for w in of.part_work.tolist()]
    kinds = [w.collective for w in sent if isinstance(w, Communication)]
    assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (2 * L, L)
    assert all(w.bytes == 4 * (12 * H**2 + 13 * H) for w in sent)


def test_a_pipeline_of_layers_sends_between_stages_alone():
    of = graph(parallelism__pp=2, training__global_batch=4 * B)
    assert {of.works[w].dimension for w in of.part_work.tolist()} == {"pp"}


def test_sgd_moves_three_numbers_per_parameter_and_keeps_none():
    of = graph(parallelism__dp=1, cluster__gpus=1, training__global_batch=B)
    held = L * (12 * H**2 + 13 * H)
    work = next(of.works[w] for n, w in zip(of.name, of.work, strict=True) if of.names[n] == "sgd")
    assert work.bytes == 12 * held
    assert not names(of) & {"adam", "grad_norm", "clip", "copy_weights"}
    job = job_of(recipe_file.parse(RECIPE))
    assert persistent(job, [0])["optimizer"] == 0
    adam = job_of(recipe_file.parse(RECIPE, overrides={"training.optimizer": "adam"}))
    assert persistent(adam, [0])["optimizer"] == 8 * held
    mixed = {"training.dtype": "bf16"}  # the fp32 copy of the weights stays
    assert (
        persistent(job_of(recipe_file.parse(RECIPE, overrides=mixed)), [0])["optimizer"] == 4 * held
    )


def test_without_clipping_no_norm_is_summed():
    split = {"parallelism__tp": 2, "training__global_batch": B}
    assert "grad_norm_all_reduce" not in names(graph(**split))
    assert "grad_norm_all_reduce" in names(graph(**split, training__clip=True))


REFUSED = [
    ({"model.position": "learned"}, r"position must be"),
    ({"model.mtp": 1}, r"model.mtp must be 0"),
    ({"training.offload": "optimizer"}, r"adam would do"),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED)
def test_what_needs_a_vocabulary_or_adam_is_refused(overrides, sentence):
    with pytest.raises(ValueError, match=sentence):
        recipe_file.parse(RECIPE, overrides=overrides)
