"""Published config.json files against presets, and what such files cannot ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.model.sizes import Model, total_parameters
from sim.recipe import families, recipe_file
from tests.sim.recipe.published_configs import CONFIGS, OTHERS, Config
from tests.sim.recipe.test_presets import read


def stated(config: Config, folder: Path, **numbers: object) -> Model:
    (folder / "config.json").write_text(json.dumps(config))
    return read({"hf": "config.json", "sequence": 1024, **numbers}, folder)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_gives_the_preset_of_its_name(name: str, tmp_path: Path) -> None:
    further = CONFIGS[name].get("num_nextn_predict_layers", 0)
    model = stated(CONFIGS[name], tmp_path, name=name)
    assert model == read({"preset": name, "sequence": 1024, "mtp": further})


@pytest.mark.parametrize("name", OTHERS)
def test_a_config_without_a_preset_has_the_parameters_of_its_model(
    name: str, tmp_path: Path
) -> None:
    config, count = OTHERS[name]
    assert total_parameters(stated(config, tmp_path)) == count


def test_layers_may_be_listed_or_counted(tmp_path: Path) -> None:
    """Each pair of files says the same model."""
    sliding = [f"{'full' if i % 6 == 5 else 'sliding'}_attention" for i in range(26)]
    gemma: Config = {"model_type": "gemma3_text", "sliding_window": 512}
    llama: Config = {"model_type": "llama4_text", "num_hidden_layers": 8}
    qwen: Config = {"model_type": "qwen3_moe", "num_hidden_layers": 4}
    nemotron: Config = {"model_type": "nemotron_h"}
    for one, other in (
        (gemma, {**gemma, "layer_types": sliding}),
        ({**llama, "interleave_moe_layer_step": 2}, {**llama, "moe_layers": [1, 3, 5, 7]}),
        (llama, {**llama, "no_rope_layers": [1, 1, 1, 0] * 2}),
        ({**qwen, "decoder_sparse_step": 2}, {**qwen, "mlp_only_layers": [0, 2]}),
        (nemotron, {**nemotron, "hybrid_override_pattern": "ME*-"}),
        (nemotron, {**nemotron, "layer_types": ["mamba", "moe", "attention", "mlp"]}),
    ):
        assert stated(one, tmp_path) == stated(other, tmp_path)
    pattern = ["experts", "dense"], ["dense", "experts"]
    model = stated({**qwen, "mlp_only_layers": [1, 3]}, tmp_path)
    assert list(model.feed_forward) == pattern[0]
    model = stated({**qwen, "mlp_only_layers": [0, 1, 2, 3]}, tmp_path)
    assert (model.experts, model.feed_forward, model.kind(0)) == (0, (), ("full", "dense"))
    full = stated({**gemma, "sliding_window": None}, tmp_path)
    assert (full.pattern, full.window) == ((), 0)


def test_what_is_beside_the_language_model_is_said_to_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma3-4b"]))
    (tmp_path / "recipe.toml").write_text('[model]\nhf = "config.json"\n')
    (file,) = recipe_file.ignored(tmp_path / "recipe.toml").items()
    assert file[0] == "config.json"
    assert file[1].left_out == {"vision_config": "parts beside the language model"}
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["qwen3-8b"]))
    assert recipe_file.ignored(tmp_path / "recipe.toml") == {}


REFUSED: list[tuple[Config, str]] = [
    ({"model_type": "deepseek_v32"}, "deepseek_v3 is the nearest that is, and lacks sparse attent"),
    ({"model_type": "mimo"}, 'model_type "mimo" is not simulated yet; there are deepseek_v2, '),
    ({"model_type": "llama4", "text_config": 3}, "text_config = 3 must be a table"),
    ({"model_type": "gemma3", "text_config": {"model_type": "gemma4_text"}}, "gemma3 is the near"),
    ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "it must be false"),
    ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "layer_types must have an"),
    ({"model_type": "gpt_oss", "layer_types": ["x"] * 36}, 'layer_types has "x"; there are slidi'),
    ({"model_type": "gpt_oss", "attention_bias": False}, "attention_bias = false is not simulated"),
    (
        {"model_type": "nemotron_h", "moe_latent_size": 1024},
        "1024 is not simulated; it must be nul",
    ),
    (
        {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 99},
        "must be a multiple of mo",
    ),
    ({"model_type": "qwen2_moe", "moe_intermediate_size": "1"}, 'moe_intermediate_size = "1" must'),
    ({"model_type": "qwen3_next", "mlp_only_layers": 3}, "mlp_only_layers = 3 must be a list of w"),
    (
        {"model_type": "qwen3_next", "full_attention_interval": 0},
        "must be a whole number of 1 or m",
    ),
    (
        {"model_type": "qwen3_next", "num_hidden_layers": 10**9},
        "num_hidden_layers = 1000000000 mus",
    ),
    (
        {"model_type": "qwen3_next", "linear_num_key_heads": 0},
        "linear_num_key_heads = 0 must be at",
    ),
]


@pytest.mark.parametrize(("config", "sentence"), REFUSED)
def test_what_cannot_be_simulated_is_one_sentence(
    config: Config, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]{1,500}$") as error:
        stated(config, tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json"))
    assert sentence in str(error.value)


def test_every_family_has_a_source_and_the_nearest_ones_are_simulated() -> None:
    assert {nearest for nearest, _ in families.NEAREST.values()} <= {*families.names()}
    assert not {*families.NEAREST} & {*families.names()}
    for name in families.names():
        own = families.family(name)
        assert own.get("source") or own["text"] in families.names()
