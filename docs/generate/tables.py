"""Tables of keys from a JSON schema: a row per key with its type, default, unit and meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from docs.generate import types
from sim.recipe.recipe import NOT_YET
from sim.table import markdown
from sim.table import table as table_of

Schema = Mapping[str, Any]
TOP = "top"
"""The mark of the table of keys that stand above all tables of the file."""


def of(schema: Schema) -> dict[str, Callable[[], str]]:
    """Return a maker of Markdown for every table that the file may have, by its dotted name."""
    above = {"properties": {k: v for k, v in schema["properties"].items() if not _inner(v, schema)}}
    found = [(TOP, above), *sections(schema)]
    return {name: partial(text, name.removeprefix(TOP), table) for name, table in found}


def sections(schema: Schema, at: str = "", root: Schema | None = None) -> Iterator[tuple[str, Any]]:
    """Yield every table of a schema that has a description, an outer one before those inside it.

    Tables that stand for each of several names are yielded once, by a word in capitals for them.
    """
    root, named = root or schema, set[str]()
    keys = schema.get("properties", {}) | schema.get("patternProperties", {})
    for key, value in keys.items():
        inner = _inner(value, root)
        if not inner:
            continue
        name = f"{at}{inner['title'] if inner.get('title', '').isupper() else key}"
        if inner.get("description") and name not in named:
            yield name, inner
        yield from () if name in named else sections(inner, f"{name}.", root)
        named.add(name)


def _inner(value: Schema, root: Schema) -> Any:
    """Return the table that a key holds, or that its list holds, if any."""
    for option in (value, value.get("items", {}), *value.get("anyOf", ())):
        if "$ref" in option:
            return root["$defs"][option["$ref"].rpartition("/")[2]]
        if "properties" in option or "$ref" in str(option.get("patternProperties", "")):
            return option
    return None


def text(name: str, table: Schema) -> str:
    """Return what the table is, and a row for each key that says more than which table it holds."""
    keys = {k: v for k, v in table["properties"].items() if "description" in v}
    rows = [row(name, key, value, table) for key, value in keys.items()]
    columns = [(head, k) for k, head in enumerate(("key", "value", "default", "unit", "meaning"))]
    shown = [column for column in columns if column[0] != "unit" or any(one[3] for one in rows)]
    about = [table["description"].split("\n\n")[0], ""] if "description" in table else []
    return "\n".join([*about, markdown(table_of(rows, *shown, left=True))])


def row(name: str, key: str, value: Schema, table: Schema) -> tuple[str, str, str, str, str]:
    """Return a key, its values, its default, its unit and its meaning as Markdown."""
    only = NOT_YET.get(f"{name}.{key}", ())
    kinds = types.said(value, f"{name}.{key}")
    limit = f" (so far only {' or '.join(f'`{json.dumps(one)}`' for one in only)})" if only else ""
    needed = key in table.get("required", ())
    meaning = " ".join(value.get("description", "").split())
    return f"`{key}`", kinds + limit, default(value, needed), types.unit(value), meaning


def default(value: Schema, needed: bool) -> str:
    """Return what a key is when it is left out, or that it has to be given."""
    if needed:
        return "required"
    given = value.get("default")
    if given is None or isinstance(given, dict):
        return ""
    large = isinstance(given, float) and given >= types.LARGE
    return f"`{types.number(given) if large else json.dumps(given)}`"
