"""Megatron-LM's test cases: YAML whose MODEL_ARGS are flags and their values."""

from __future__ import annotations

from typing import Any

import yaml

from schedules.input_error import InputError
from sim.keys.refusals import brief
from sim.recipe.translate.flags import Flags, of_table


class _Texts(yaml.SafeLoader):  # type: ignore[misc]
    """Reads every value as text, as a command line has it; only merges (``<<``) are resolved."""


_MERGE = yaml.SafeLoader.yaml_implicit_resolvers["<"]
_Texts.yaml_implicit_resolvers = {"<": _MERGE}


def of_yaml(text: str, where: str) -> Flags:
    """Return the flags under MODEL_ARGS of a test case.

    Raises InputError for a file that is no YAML, without MODEL_ARGS, or with other keys there.

    >>> of_yaml("MODEL_ARGS:\\n  --bf16: true\\n  --num-layers: 12  # few\\n", "a.yaml").given
    {'--bf16': (), '--num-layers': ('12',)}
    """
    try:
        found = yaml.load(text, _Texts)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{where} nests its tables too deeply to be read") from None
    table = found.get("MODEL_ARGS") if isinstance(found, dict) else None
    if not isinstance(table, dict):
        raise InputError(f"{where} has no MODEL_ARGS with flags under it")
    if other := next((key for key in table if not str(key).startswith("--")), None):
        raise InputError(f"{where}: {brief(other)} is not a flag of Megatron-LM's scripts")
    if nested := next((flag for flag, said in table.items() if _nests(said)), None):
        raise InputError(f"{where}: {nested} must be a value or a list of values, without tables")
    return of_table({flag: _value(said) for flag, said in table.items()}, where)


def _nests(said: Any) -> bool:
    return isinstance(said, dict) or (
        isinstance(said, list) and any(isinstance(one, list | dict) for one in said)
    )


def _value(said: Any) -> object:
    """Return what a flag is given: a switch is true or false, a list may lack its commas."""
    if isinstance(said, list):
        return " ".join(map(str, said)).split()
    text = str(said)
    if text[:1] == "[" and text[-1:] == "]":
        return text[1:-1].replace(",", " ").split()
    return {"true": True, "false": False}.get(text.lower(), text)
