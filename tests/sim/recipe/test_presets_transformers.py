"""Published config.json files, and so presets, against what transformers builds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.model.sizes import total_parameters
from tests.sim.recipe.published_configs import CONFIGS, OTHERS, Config
from tests.sim.recipe.test_config_json import stated

SAME = {
    "kimi_k2": "deepseek_v3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""The class of a family without one of its own, and of a language model by itself."""


def configuration(config: Config) -> Any:
    """The language model's configuration, with the tied embedding that the file says above it."""
    transformers = pytest.importorskip("transformers")
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    text = {**config.get("text_config", config), **tied}
    family = text.pop("model_type")
    made = transformers.CONFIG_MAPPING[SAME.get(family, family)](**text)
    made.pad_token_id = 0
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CONFIGS, *OTHERS])
def test_a_config_has_the_parameters_of_the_model_that_transformers_builds(
    name: str, tmp_path: Path
) -> None:
    config = CONFIGS[name] if name in CONFIGS else OTHERS[name][0]
    made = configuration(config)
    import torch
    import transformers

    whole = type(made) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    auto = transformers.AutoModelForCausalLM if whole else transformers.AutoModel
    with torch.device("meta"):
        built = auto.from_config(made)
    model = stated(config, tmp_path, mtp=0)
    assert sum(p.numel() for p in built.parameters()) == total_parameters(model)
