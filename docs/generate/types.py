"""Values that a key takes, said in words from its JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
LARGE = 1e7
"""Numbers from here on are written with their power of ten."""
NAMES = {
    "boolean": "`true` or `false`",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "object": "table",
}


def said(schema: Schema, name: str = "") -> str:
    """Return the types, choices and bounds of a value; a table is a link to that of ``name``.

    >>> said({"anyOf": [{"enum": ["a", "b"]}, {"type": "integer", "minimum": 1}, {"type": "null"}]})
    '`"a"`, `"b"` or whole number of at least 1'
    """
    if "anyOf" in schema:
        options = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return either([words for one in options for words in _options(one, name)])
    if "$ref" in schema:
        return f"[table](#{name.replace('.', '')})"
    if "enum" in schema or "const" in schema:
        return either(_options(schema, name))
    if schema.get("type") == "array":
        return _list(schema)
    such = [f" such as `{json.dumps(one)}`" for one in schema.get("examples", ())]
    return NAMES[schema["type"]] + bounds(schema) + "".join(such)


def _options(schema: Schema, name: str) -> list[str]:
    """Return the choices of a value, each as it is written; of others, what they are."""
    if schema.get("type") == "boolean":
        return ["`true`", "`false`"]
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [f"`{json.dumps(one)}`" for one in choices] or [said(schema, name)]


def either(words: list[str]) -> str:
    """Return words with commas and an "or".

    >>> either(["a", "b", "c"])
    'a, b or c'
    """
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def bounds(schema: Schema) -> str:
    """Return how large a number may be.

    >>> bounds({"minimum": 1, "maximum": 64}), bounds({"exclusiveMinimum": 0, "maximum": 1e9})
    (' from 1 to 64', ' above 0 and at most 1e9')
    >>> bounds({"minimum": 1, "maximum": 2**31}), bounds({})
    (' of at least 1', '')
    """
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMaximum" in schema:
        end = f"below {number(schema['exclusiveMaximum'])}"
        wide = schema["exclusiveMaximum"] >= 2**31
    else:
        end, wide = (f"at most {number(high)}", high >= 2**31) if high is not None else ("", True)
    if low is not None and high is not None and not wide:
        return f" from {number(low)} to {number(high)}"
    above = schema.get("exclusiveMinimum")
    begin = f"of at least {number(low)}" if low is not None else ""
    begin = f"above {number(above)}" if above is not None else begin
    said = " and ".join(part for part in (begin, "" if wide else end) if part)
    return f" {said}" if said else ""


def number(value: float) -> str:
    """Return a bound in digits, or with its power of ten.

    >>> number(131072), number(1e9), number(1e-6), number(0.5)
    ('131,072', '1e9', '1e-6', '0.5')
    """
    if value < LARGE and value == int(value):
        return f"{int(value):,}"
    return re.sub(r"e(-?)\+?0?", r"e\1", f"{value:g}")


def unit(schema: Schema) -> str:
    """Return the unit of a value, if it has one."""
    inside = [*schema.get("anyOf", ()), schema.get("items", {})]
    return str(schema.get("unit", "")) or next(filter(None, map(unit, filter(None, inside))), "")


def _list(schema: Schema) -> str:
    """Say what a list holds."""
    items = schema.get("items", {})
    if "$ref" in items:
        return "list of tables"
    if "enum" in items or "anyOf" in items:
        return f"list of {said(items)}"
    if "type" not in items:
        return "list"
    return f"list of {NAMES[items['type']]}s{bounds(items).replace(' from', ', each from')}"
