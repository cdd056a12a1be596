"""The numbers of a Hugging Face config.json in the words of a recipe: only what it states."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.files import read_text
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
