"""What is wrong with a key of a file, in words for the person who wrote it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

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


def limit(bound: float) -> str:
    """Return a bound in digits."""
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def nearest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the nearest of some words, if one is near."""
    return next(iter(difflib.get_close_matches(word, list(words), 1, cutoff)), None)
