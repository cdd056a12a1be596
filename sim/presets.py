"""What a model's name or its Hugging Face config.json says, in the words of a recipe.

Both give only what they state. What follows from it (``head_dim`` from ``hidden`` and ``heads``) is
filled in by :func:`complete`, after the recipe's own numbers have been put over it.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODELS = Path(__file__).parent / "models"

_ACTIVATION = {"silu": "silu", "swish": "silu", "relu2": "relu2", "gelu": "gelu"}
_ACTIVATION |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")

_LLAMA = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "intermediate_size": 11008,
    "hidden_act": "silu",
    "vocab_size": 32000,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": True,
}
_MISTRAL = {**_LLAMA, "num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096}
_QWEN2 = {
    **_LLAMA,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "vocab_size": 151936,
    "use_sliding_window": False,
}
_GPT2 = {
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "activation_function": "gelu_new",
    "vocab_size": 50257,
    "tie_word_embeddings": True,
    "resid_pdrop": 0.1,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
}
"""Defaults of each family's configuration class in transformers: files may leave these keys out."""


def names() -> list[str]:
    """The presets there are.

    >>> "gpt3-175b" in names()
    True
    """
    return sorted(file.stem for file in MODELS.glob("*.toml"))


def preset(name: str) -> dict[str, Any]:
    """The numbers of a preset, its source left out.

    Raises ValueError, with the near match, when there is none of that name.
    """
    if name not in names():
        near = difflib.get_close_matches(name.lower(), names(), 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise ValueError(f"no model preset {name!r}; {hint} are {', '.join(names())}")
    numbers = tomllib.loads((MODELS / f"{name}.toml").read_text())
    numbers.pop("source")
    return {"name": name, **numbers}


def hugging_face(path: Path) -> dict[str, Any]:
    """The numbers of a config.json, or of the folder that holds one.

    Query and key norms of Qwen3 (2 ``head_dim`` parameters a layer) are left out.
    """
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"{file}: model_type {family!r} is not simulated yet; "
            f"there are {', '.join(FAMILIES)} (dense)"
        )
    stated = {**FAMILIES[family], **config}
    numbers = _gpt2(stated) if family == "gpt2" else _llama(stated, family)
    activation = stated.get("hidden_act", stated.get("activation_function"))
    if activation not in _ACTIVATION:
        known = ", ".join(_ACTIVATION)
        raise ValueError(f"{file}: activation {activation!r} is not simulated; there are {known}")
    name = Path(str(config.get("_name_or_path") or "")).name or family
    return {"name": name, **numbers, "activation": _ACTIVATION[activation]}


def longest(path: Path) -> int | None:
    """The most tokens per sample that a config.json allows and that can be simulated.

    It is bounded by the positions and, where one is in use, by the sliding attention window.
    """
    config = _read(path / "config.json" if path.is_dir() else path)
    stated = {**FAMILIES.get(config.get("model_type", ""), {}), **config}
    bounds = [stated.get("max_position_embeddings"), stated.get("n_positions"), window(path)]
    return min((bound for bound in bounds if isinstance(bound, int)), default=None)


def window(path: Path) -> int | None:
    """The sliding attention window of a config.json in tokens, if it has one in use."""
    config = _read(path / "config.json" if path.is_dir() else path)
    stated = {**FAMILIES.get(config.get("model_type", ""), {}), **config}
    return stated.get("sliding_window") if stated.get("use_sliding_window") else None


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All numbers of a model, from those that are given and what follows from them.

    >>> full = complete({"layers": 2, "hidden": 8, "heads": 2, "vocab": 99, "sequence": 16})
    >>> full["head_dim"], full["ffn"], full["positions"]
    (4, 32, 16)
    """
    missing = [
        key for key in ("layers", "hidden", "heads", "vocab", "sequence") if key not in given
    ]
    if missing:
        raise ValueError(
            f"model.{missing[0]} is missing; give it, or a preset, or hf = 'path/config.json'"
        )
    hidden, heads = given["hidden"], given["heads"]
    kv_heads = given.get("kv_heads", heads)
    gated = given.get("gated", given.get("activation") == "silu")
    position = given.get("position", "learned")
    bias = given.get("bias", given.get("norm", "layer") == "layer")
    if "head_dim" not in given and hidden % heads:
        raise ValueError(f"model.hidden = {hidden} is not a multiple of model.heads = {heads}")
    if heads % kv_heads:
        raise ValueError(f"model.heads = {heads} is not a multiple of model.kv_heads = {kv_heads}")
    if gated and "ffn" not in given:
        raise ValueError("model.ffn is missing; a gated MLP has no usual width")
    follows = {
        "name": "model",
        "kv_heads": kv_heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden,
        "gated": gated,
        "tied": True,
        "norm": "layer",
        "attention": "flash",
        "activation": "silu" if gated else "gelu",
        "qkv_bias": bias,
        "bias": bias,
        "position": position,
        "positions": given["sequence"] if position == "learned" else 0,
        "dropout": 0.0,
        "vocab_padding": 128,
    }
    full = {**follows, **given}
    if position == "learned" and full["positions"] < given["sequence"]:
        raise ValueError(
            f"model.sequence = {given['sequence']} is longer than the "
            f"{full['positions']} positions that the model has learned"
        )
    return full


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{file} is not JSON") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} is not a model's config.json: it holds no table")
    return config


def _gpt2(stated: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        "layers": stated["n_layer"],
        "hidden": stated["n_embd"],
        "heads": stated["n_head"],
        "vocab": stated["vocab_size"],
        "gated": False,
        "tied": stated["tie_word_embeddings"],
        "norm": "layer",
        "qkv_bias": True,
        "bias": True,
        "position": "learned",
        "positions": stated["n_positions"],
        "dropout": stated["resid_pdrop"],
    }
    return numbers if stated["n_inner"] is None else {**numbers, "ffn": stated["n_inner"]}


def _llama(stated: Mapping[str, Any], family: str) -> dict[str, Any]:
    optional = {"kv_heads": stated["num_key_value_heads"], "head_dim": stated["head_dim"]}
    return {
        "layers": stated["num_hidden_layers"],
        "hidden": stated["hidden_size"],
        "heads": stated["num_attention_heads"],
        **{key: value for key, value in optional.items() if value is not None},
        "ffn": stated["intermediate_size"],
        "vocab": stated["vocab_size"],
        "gated": True,
        "tied": stated["tie_word_embeddings"],
        "norm": "rms",
        "qkv_bias": family == "qwen2" or stated["attention_bias"],
        # transformers' attention_bias puts one on the output projection too, which has no key here
        "bias": stated["mlp_bias"],
        "position": "rope",
        "dropout": 0.0,
    }
