"""What is wrong with a key of a file, in words for the person who wrote it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any

WANTED = "wanted"
"""The type of a refusal whose message says what a value must be."""
TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list of whole numbers",
    "list_type": "a list of tables, [[perturbations]]",
    "dict_type": "a table",
}
"""What a value must be, by the type of what pydantic found wrong with it."""

_FAULTS = {
    "greater_than_equal": "{found} must be at least {ge}",
    "greater_than": "{found} must be greater than {gt}",
    "less_than": "{found} must be less than {lt}",
    "less_than_equal": "{found} must be at most {le}",
    "string_too_short": "{name} is empty; give it, or leave it out",
    "string_too_long": "{name} is longer than {max_length} characters",
    "too_short": "{name} is empty; give a value",
    "too_long": "{name} has over {max_length} entries, the most there may be",
    "literal_error": "{found} must be {expected}",
    "model_type": "{found} must be a table, [{name}]",
    "model_attributes_type": "{found} must be a table, [{name}]",
}


def show(value: object) -> str:
    """Return a value as a recipe writes it.

    >>> show(True), show("bf16")
    ('true', '"bf16"')
    """
    return json.dumps(value, default=str, ensure_ascii=False).replace("\x7f", r"\u007f")


def brief(value: object) -> str:
    """Return a value as a recipe writes it, cut short where it is long.

    >>> brief(10**99)
    '100000000000000000000000000000000000000000000000000000000...'
    """
    try:
        said = show(value)
    except (ValueError, RecursionError):  # too many digits, or lists nested too deeply
        return f"a {type(value).__name__} too long to show"
    return said if len(said) <= 60 else f"{said[:57]}..."


def fault(problem: Mapping[str, Any], name: str) -> str:
    """Return what pydantic found wrong with the value of a key of this name.

    >>> of = {"type": "greater_than_equal", "msg": "", "input": 0, "ctx": {"ge": 1}}
    >>> fault(of, "cluster.gpus")
    'cluster.gpus = 0 must be at least 1'
    """
    kind, said = problem["type"], problem["msg"]
    found = f"{name} = {brief(problem['input'])}"
    if kind not in _FAULTS:
        wanted = TYPES.get(kind, said if kind == WANTED else said.lower())
        return f"{found} must be {wanted}"
    bounds = {k: v if isinstance(v, str) else limit(v) for k, v in problem.get("ctx", {}).items()}
    return _FAULTS[kind].format(found=found, name=name, **bounds)


def limit(bound: float) -> str:
    """Return a bound in digits."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def nearest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the nearest of some words, if one is near."""
    return next(iter(difflib.get_close_matches(word, list(words), 1, cutoff)), None)
