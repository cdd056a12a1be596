"""The numbers of a preset or of a Hugging Face config.json, in the words of a recipe.

Both give only what they state. What follows from it (``head_dim`` from ``hidden`` and ``heads``) is
filled in by :func:`complete`, after the recipe's own numbers have replaced theirs.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.files import read_text
from sim.model import resnet
from sim.recipe.families import (
    ACTIVATION,
    ALWAYS,
    FAMILIES,
    GPT2_IS,
    KEYS,
    LATENT,
    LLAMA_IS,
    LLAMA_KEYS,
    MAY_BE_NULL,
    MLA_KEYS,
    ONLY,
)
from sim.recipe.mixtures import check_experts, check_kernels, check_latent, check_pattern

MODELS = Path(__file__).parent / "models"


def names() -> list[str]:
    """List the names of the presets.

    >>> "gpt3-175b" in names()
    True
    """
    return sorted(file.stem for file in MODELS.glob("*.toml"))


def preset(name: str, instead: str = "") -> dict[str, Any]:
    """Return the numbers of a preset, without its source.

    Raises InputError, with the nearest name, when there is no preset of that name; the message ends
    with what would do ``instead``.
    """
    if name not in names():
        near = difflib.get_close_matches(name.lower(), names(), 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        there = f"{', '.join(names())}{'; ' * bool(instead)}{instead}"
        raise InputError(f"no model preset {name!r}; {hint} are {there}")
    numbers = tomllib.loads((MODELS / f"{name}.toml").read_text())
    numbers.pop("source")
    return {"name": name, **numbers}


def hugging_face(path: Path) -> dict[str, Any]:
    """Return the numbers that a config.json states, or that of the folder that holds one.

    The recipe checks whether a model can have them; it names them by :func:`spelling`. Query and
    key norms of Qwen3 (2 ``head_dim`` parameters a layer) are left out, and so is the bias of
    routers of DeepSeek-V3, Kimi K2 and GLM-4.5, which has no gradient. Raises InputError for a file
    that states what is not simulated.
    """
    stated, file = _stated(path)
    family = stated["model_type"]
    keys, fixed = KEYS.get(family, LLAMA_KEYS), GPT2_IS if family == "gpt2" else LLAMA_IS
    for key, values in ONLY.get(family, {}).items():
        if stated[key] not in values:
            raise InputError(
                f"{file}: {key} = {_shown(stated[key])} is not simulated; it must be "
                f"{_shown(values[-1])}"
            )
    for key in keys.values():
        if stated[key] is None and key not in MAY_BE_NULL:
            raise InputError(f"{file}: {key} is null; give its value, or leave it out")
    numbers = {k: stated[key] for k, key in keys.items() if stated[key] is not None}
    numbers |= ALWAYS.get(family, {})
    if family == "glm4_moe" and stated["use_qk_norm"]:
        numbers["qk_norm"] = "head"
    if family in LATENT:
        numbers["mla"] = {key: stated[key] for key in MLA_KEYS if stated[key] is not None}
    name = stated.get("_name_or_path")
    name = (Path(name).name if isinstance(name, str) else "") or family
    return {"name": name, **numbers, **fixed, "activation": _activation(stated, file)}


def spelling(path: Path) -> dict[str, str]:
    """Return the keys of a recipe's model in the spelling of a config.json."""
    stated, _ = _stated(path)
    keys = KEYS.get(stated["model_type"], LLAMA_KEYS)
    return {**keys, **{key: key for key in MLA_KEYS}, "name": "_name_or_path"}


def longest(path: Path) -> int | None:
    """Return the most tokens per sample that a config.json allows and that can be simulated.

    They are bounded by the positions and by the sliding attention window, if it is in use. Raises
    InputError for a bound that is not a whole number.
    """
    stated, file = _stated(path)
    positions = [_count(stated, key, file) for key in ("max_position_embeddings", "n_positions")]
    return min(filter(None, [*positions, window(path)]), default=None)


def window(path: Path) -> int | None:
    """Return the sliding attention window of a config.json in tokens, or None if it uses none.

    Raises InputError for a window that is not a whole number.
    """
    stated, file = _stated(path)
    used = stated.get("use_sliding_window")
    if used is not None and not isinstance(used, bool):
        raise InputError(f"{file}: use_sliding_window = {_shown(used)} must be true or false")
    size = _count(stated, "sliding_window", file)
    return size if used else None


def complete(given: Mapping[str, Any], attention: str = "flash") -> dict[str, Any]:
    """Return all numbers of a model: those that are given and those that follow from them.

    ``attention`` is the kernel unless it is given. Raises InputError for a missing number, or
    numbers that contradict each other.

    >>> full = complete({"layers": 2, "hidden": 8, "heads": 2, "vocab": 99, "sequence": 16})
    >>> full["head_dim"], full["ffn"], full["positions"]
    (4, 32, 16)
    """
    if given.get("blocks"):
        return resnet.complete(given)
    resnet.refuse_without_blocks(given)
    missing = [
        key for key in ("layers", "hidden", "heads", "vocab", "sequence") if key not in given
    ]
    if missing:
        raise InputError(
            f"model.{missing[0]} is missing; give it, or a preset, or hf = 'path/config.json'"
        )
    hidden, heads = given["hidden"], given["heads"]
    kv_heads = given.get("kv_heads", heads)
    gated = given.get("gated", given.get("activation") == "silu")
    usual = "rope" if given.get("mla") else "learned" if given["vocab"] else "none"
    position = given.get("position", usual)
    plain = given.get("experts") or given.get("mla")
    bias = given.get("bias", given.get("norm", "layer") == "layer" and not plain)
    mla, experts = given.get("mla"), given.get("experts", 0)
    if "head_dim" not in given and not mla and hidden % heads:
        raise InputError(f"model.hidden = {hidden} is not a multiple of model.heads = {heads}")
    if heads % kv_heads:
        raise InputError(f"model.heads = {heads} is not a multiple of model.kv_heads = {kv_heads}")
    if mla:
        check_latent(given, heads, kv_heads)
    check_experts({**given, "gated": gated}, experts)
    check_pattern(given)
    dense = given.get("dense_layers") or "dense" in given.get("feed_forward", ())
    if gated and "ffn" not in given and (not experts or dense):
        raise InputError("model.ffn is missing; a gated MLP has no default width")
    follows = {
        "name": "model",
        "kv_heads": kv_heads,
        "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"] if mla else hidden // heads,
        "ffn": given.get("expert_ffn", 4 * hidden) if experts else 4 * hidden,
        "gated": gated,
        "tied": True,
        "norm": "layer",
        "attention": attention,
        "activation": "silu" if gated else "gelu",
        "qkv_bias": bias and not mla,
        "bias": bias,
        "position": position,
        "positions": given["sequence"] if position == "learned" else 0,
        "dropout": 0.0,
        "vocab_padding": 128,
    }
    full = {**follows, **given}
    if experts:
        own = {"expert_ffn": full["ffn"], "shared_experts": 0, "dense_layers": 0}
        full = {**own, "load": {"kind": "balanced"}, **full}
    check_kernels(full)
    if position == "learned" and full["positions"] < given["sequence"]:
        raise InputError(
            f"model.sequence = {given['sequence']} is longer than the "
            f"{full['positions']} positions that the model has learned"
        )
    return full


def _stated(path: Path) -> tuple[dict[str, Any], Path]:
    """Return all that a config.json states with its family's defaults, and the file itself."""
    file = config_file(path)
    config = _read(file)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise InputError(
            f"{file}: model_type {_shown(family)} is not simulated yet; "
            f"there are {', '.join(FAMILIES)}"
        )
    return {**FAMILIES[family], **config}, file


def config_file(path: Path) -> Path:
    """Return the config.json itself, for which the folder of a model may stand."""
    return path / "config.json" if os.path.isdir(path) else path  # noqa: PTH112  any path works


def _read(file: Path) -> dict[str, Any]:
    text = read_text(file)
    try:
        config = json.loads(text)
    except RecursionError:
        raise InputError(f"{file} nests its tables too deeply to be read") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON: {error}") from None
    except ValueError:
        raise InputError(f"{file} has a number with too many digits") from None
    if not isinstance(config, dict):
        raise InputError(f"{file} is not a model's config.json: it holds no table")
    return config


def _activation(stated: Mapping[str, Any], file: Path) -> str:
    key = "activation_function" if stated["model_type"] == "gpt2" else "hidden_act"
    found = stated[key]
    if not isinstance(found, str) or found not in ACTIVATION:
        known = ", ".join(ACTIVATION)
        raise InputError(f"{file}: {key} {_shown(found)} is not simulated; there are {known}")
    return ACTIVATION[found]


def _count(stated: Mapping[str, Any], key: str, file: Path) -> int | None:
    """Return a number of tokens, or None if the file has none."""
    found = stated.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= 2**31:
        raise InputError(
            f"{file}: {key} = {_shown(found)} must be a whole number from 1 to {2**31:,}"
        )
    return found


def _shown(value: object) -> str:
    try:
        said = json.dumps(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too long to show"
    return said if len(said) <= 60 else f"{said[:57]}..."
