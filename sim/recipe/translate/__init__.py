"""Recipes that name another program's arguments: ``megatron = …`` or ``torchtitan = …``.

They are translated into the recipe's own tables; the recipe's own keys then replace theirs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from sim import strategies
from sim.files import read_text
from sim.keys.refusals import brief
from sim.late import late
from sim.recipe.translate.fates import Ignored, fates, judge

if TYPE_CHECKING:
    from sim.recipe.translate import (
        flags,
        megatron,
        shell,
        torchtitan,
        torchtitan_keys,
        yaml_case,
    )
else:  # few recipes name another program
    flags, megatron = late(f"{__name__}.flags"), late(f"{__name__}.megatron")
    shell, torchtitan = late(f"{__name__}.shell"), late(f"{__name__}.torchtitan")
    torchtitan_keys = late(f"{__name__}.torchtitan_keys")
    yaml_case = late(f"{__name__}.yaml_case")

SCHEMA: dict[str, Any] = {
    "megatron": {
        "anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}],
        "description": "Megatron-LM's arguments: a script, a YAML test case, a list or a table",
    },
    "torchtitan": {"type": "string", "description": "path of torchtitan's TOML configuration"},
    "allow_unknown": {"type": "boolean", "description": "whether to ignore unknown arguments"},
}
"""The keys of a recipe about other programs' arguments, for its JSON schema."""
NAMES = ("megatron", "torchtitan")
ALLOW = "allow_unknown"


def merge(data: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Ignored]]:
    """Return the recipe's tables, named arguments translated, and what of each file was ignored.

    Raises InputError, in one sentence, for arguments that cannot be read or expressed in a recipe,
    that describe another job, or that are unknown and not allowed.
    """
    if not isinstance(data.get(ALLOW, False), bool):
        raise InputError(f"{ALLOW} = {brief(data[ALLOW])} must be true or false")
    named = [name for name in NAMES if name in data]
    if not named:
        return {name: keys for name, keys in data.items() if name != ALLOW}, {}
    if len(named) > 1:
        raise InputError("megatron and torchtitan are both given; leave one of them out")
    translate = _megatron if named == ["megatron"] else _torchtitan
    translated, ignored = translate(data[named[0]], data, folder)
    own = {name: keys for name, keys in data.items() if name not in SCHEMA}
    return {**translated, **_over(translated, own)}, {k: v for k, v in ignored.items() if v}


def _over(translated: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Put the recipe's own tables over the translated tables of the same name."""
    out: dict[str, Any] = {}
    for name, keys in own.items():
        if isinstance(keys, dict):
            below = translated.get(name, {})
            either = chain(_EITHER, *strategies.declared("EITHER"))
            instead = [one for one, other in either if other in keys]
            if name == "schedule" and keys.get("name", below.get("name")) != below.get("name"):
                instead += ["chunks", "group", "overlap"]  # another schedule may not have them
            kept = {key: value for key, value in below.items() if key not in instead}
            out[name] = {**kept, **keys}
        else:
            out[name] = keys
    return out


_EITHER = (("name", "csv"), ("csv", "name"))
"""Keys of a section: if the recipe has the second itself, it replaces the first."""


Translated = tuple[dict[str, Any], dict[str, Ignored]]


def _megatron(value: object, data: Mapping[str, Any], folder: Path) -> Translated:
    found, unread = _flags(value, folder)
    ignored = judge(fates("megatron"), found, allow_unknown=data.get(ALLOW, False))
    own = data.get("model")
    keys = own.keys() if isinstance(own, dict) else set()
    model, sized = not keys & {"preset", "hf"}, "vocab" in keys
    tables = megatron.translate(found, _gpus(data), model=model, sized=sized)
    out = _with_features(tables, "megatron", found)
    left_out = {**ignored.left_out, **megatron.left_out(found)}
    return out, {found.where: replace(ignored, left_out=left_out, unread=unread)}


def _flags(value: object, folder: Path) -> tuple[flags.Flags, list[str]]:
    """Return the flags of a script, a test case, a list or a table, and what was not read."""
    if isinstance(value, dict):
        return flags.of_table(value, "megatron"), []
    if isinstance(value, list):
        return flags.of_words([_word(word) for word in value], "megatron")
    path, text = _read("megatron", value, folder)
    if path.suffix in (".yaml", ".yml"):
        return yaml_case.of_yaml(text, path.name), []
    words, left_out = shell.arguments(text, path.name)
    found, stray = flags.of_words(words, path.name)
    return found, stray + left_out


def _word(word: object) -> str:
    if isinstance(word, bool) or not isinstance(word, str | int | float):
        raise InputError(f"megatron has {brief(word)}, which must be a flag or a value")
    return str(word)


def _torchtitan(value: object, data: Mapping[str, Any], folder: Path) -> Translated:
    path, text = _read("torchtitan", value, folder)
    own = data.get("model")
    table = fates("torchtitan")
    titan = torchtitan_keys.keys(text, path.name, table, _gpus(data))
    ignored = judge(table, titan, allow_unknown=data.get(ALLOW, False))
    beside = os.path.dirname(str(value))  # noqa: PTH120  as the recipe writes it
    model = own if isinstance(own, dict) else None
    out = torchtitan.translate(titan, model, beside)
    return _with_features(out, "torchtitan", titan), {titan.where: ignored}


def _with_features(tables: dict[str, Any], program: str, said: object) -> dict[str, Any]:
    """Put what features read of another program's arguments into a recipe's tables."""
    for read in strategies.declared(program):
        for name, keys in read(said).items():
            tables[name] = {**tables.get(name, {}), **keys}
    return tables


def _read(name: str, value: object, folder: Path) -> tuple[Path, str]:
    if not isinstance(value, str) or not value:
        other = " or a list of arguments" if name == "megatron" else ""
        raise InputError(f"{name} = {brief(value)} must be the name of a file{other}")
    path = Path(os.path.normpath(folder / value))
    return path, read_text(path, f"{name} = ")


def _gpus(data: Mapping[str, Any]) -> int | None:
    cluster = data.get("cluster")
    gpus = cluster.get("gpus") if isinstance(cluster, dict) else None
    return gpus if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus > 0 else None
