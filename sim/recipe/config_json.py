"""The numbers of a Hugging Face config.json in the words of a recipe: only what it states."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.files import read_text
from sim.recipe.config_numbers import numbers, windowed
from sim.recipe.families import NEAREST, family, names
from sim.recipe.layer_lists import shown


def hugging_face(path: Path) -> dict[str, Any]:
    """Return the numbers that a config.json states, or that of the folder that holds one.

    Of a model with other parts, such as a vision tower, only the language model is read. The recipe
    checks whether a model can have the numbers; it names them by :func:`spelling`. Raises
    InputError for a file that states what is not simulated.
    """
    stated, file = _stated(path)
    try:
        found = numbers(family(stated["model_type"]), stated)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    name = stated.get("_name_or_path")
    name = (Path(name).name if isinstance(name, str) else "") or stated["model_type"]
    return {"name": name, **found}


def spelling(path: Path) -> dict[str, str]:
    """Return the keys of a recipe's model in the spelling of a config.json."""
    of = family(_stated(path)[0]["model_type"])
    nested = {key: name for table in of["tables"].values() for key, name in table.items()}
    window = {"window": of["pattern"]["window"]} if windowed(of) else {}
    spelled = {**nested, **of["keys"], **window, "name": "_name_or_path"}
    return {key: name for key, name in spelled.items() if isinstance(name, str)}


def left_out(path: Path) -> dict[str, str]:
    """Return the tables of a config.json that are not read, and what each is about."""
    config = _read(config_file(path))
    parts = [key for key, of in config.items() if key.endswith("_config") and isinstance(of, dict)]
    others = [key for key in parts if key not in ("text_config", "quantization_config")]
    return dict.fromkeys(
        others if "text_config" in config else (), "parts beside the language model"
    )


def longest(path: Path) -> int | None:
    """Return the most tokens per sample that a config.json allows and that can be simulated.

    They are bounded by the positions and by the sliding attention window, if it is in use. Raises
    InputError for a bound that is not a whole number.
    """
    stated, file = _stated(path)
    positions = [_count(stated, key, file) for key in ("max_position_embeddings", "n_positions")]
    return min(filter(None, [*positions, window(path)]), default=None)


def window(path: Path) -> int | None:
    """Return the window of attention in all layers in tokens, or None if there is none.

    Raises InputError for a window that is not a whole number.
    """
    stated, file = _stated(path)
    if windowed(family(stated["model_type"])):
        return None
    used = stated.get("use_sliding_window")
    if used is not None and not isinstance(used, bool):
        raise InputError(f"{file}: use_sliding_window = {shown(used)} must be true or false")
    size = _count(stated, "sliding_window", file)
    return size if used else None


def _stated(path: Path) -> tuple[dict[str, Any], Path]:
    """Return all that a config.json states with its family's defaults, and the file itself."""
    file = config_file(path)
    config = _read(file)
    of = family(_known(config, file))
    if "text" in of:
        inner = config.get("text_config", {})
        if not isinstance(inner, dict):
            raise InputError(f"{file}: text_config = {shown(inner)} must be a table")
        above = ("_name_or_path", "tie_word_embeddings")
        config = {"model_type": of["text"], **inner, **{k: config[k] for k in above if k in config}}
        of = family(_known(config, file))
    later = {name: config[key] for key, name in of["also"].items() if key in config}
    return {**of["defaults"], **later, **config}, file


def _known(config: Mapping[str, Any], file: Path) -> str:
    """Return the family of a config.json, if it is simulated."""
    name = config.get("model_type")
    if isinstance(name, str) and name in names():
        return name
    said = f"{file}: model_type {shown(name)} is not simulated yet; "
    if isinstance(name, str) and (found := NEAREST.get(name.removesuffix("_text"))):
        raise InputError(f"{said}{found[0]} is the nearest that is, and lacks {found[1]}")
    there = [name for name in names() if not name.endswith("_text")]
    raise InputError(f"{said}there are {', '.join(there)}")


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


def _count(stated: Mapping[str, Any], key: str, file: Path) -> int | None:
    """Return a number of tokens, or None if the file has none."""
    found = stated.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= 2**31:
        raise InputError(
            f"{file}: {key} = {shown(found)} must be a whole number from 1 to {2**31:,}"
        )
    return found
