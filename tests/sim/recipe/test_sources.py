"""Any configuration as the recipe: each means what a recipe that names it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.recipe import recipe_file

WORDS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --bf16"
)
TITAN = "[job]\n[model]\nname = 'llama3'\nflavor = '8B'\n[training]\nseq_len = 8192\n"
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000, "hidden_act": "silu",
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
CLUSTER = {"cluster.topology": "dgx_h100", "cluster.gpus": 8}
FILES = {
    "train.sh": (f"torchrun pretrain_gpt.py {WORDS}", {"megatron": "train.sh"}),
    "case.yaml": (
        "MODEL_ARGS:\n" + "".join(
            f"  --{pair.strip().replace(' ', ': ') if ' ' in pair.strip() else 'bf16: true'}\n"
            for pair in WORDS.split("--")[1:]
        ),
        {"megatron": "case.yaml"},
    ),
    "job.toml": (TITAN, {"torchtitan": "job.toml"}),
    "config.json": (json.dumps(LLAMA), {"model": {"hf": "config.json"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_the_recipe_that_names_it(name: str, tmp_path: Path) -> None:
    text, means = FILES[name]
    (tmp_path / name).write_text(text)
    over = {
        **CLUSTER,
        "training.global_batch": 64,
        **({"model.sequence": 512} if "hf" in str(means) else {}),
    }
    assert recipe_file.load(tmp_path / name, over) == recipe_file.parse(means, tmp_path, over)


def test_a_presets_name_is_a_recipe(traincast) -> None:  # type: ignore[no-untyped-def]
    line = ["check", "llama3-8b", "--topology", "dgx_h100", "--gpus", "16", "--json"]
    code, out, _ = traincast(*line, "--set", "training.global_batch=64")
    assert (code, json.loads(out)["fits"]) == (0, False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["llama3-9b"], "no model preset 'llama3-9b'; did you mean llama3-8b?"),
        (["gpt-1.5b"], "the section [cluster] is missing"),
        ([""], "an empty path names no file"),
        (["llama3-8b"], "the section [cluster] is missing; --topology dgx_h100 --gpus 8 would do"),
        (["llama3-8b", "--gpus", "8"], "cluster.topology is missing; --topology dgx_h100 would do"),
        (["llama3-8b", "--gpus", "8", "--topology", "dgx_h100"],
         "the section [training] is missing; --set training.global_batch=64 would do"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_sentence(line: list[str], said: str, traincast) -> None:  # type: ignore[no-untyped-def]
    code, _, error = traincast("check", *line)
    assert code == 2
    assert said in error
