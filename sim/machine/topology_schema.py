"""The JSON schema of topology files for editors, with the meaning of every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.keys.descriptions import describe
from sim.machine.declared.topology import Topology

Schema = dict[str, Any]


def complete() -> Schema:
    """Return the schema of a topology without a base, which has to say everything."""
    schema = Topology.model_json_schema()
    describe(schema)
    for table in (*schema["$defs"].values(), schema):
        table["properties"]["source"] = table["properties"].pop("source")  # to the end
    return schema


def json_schema() -> Schema:
    """Return the JSON schema of topology files: with a base, anything may be left out."""
    whole = complete()
    demands = _demands(whole, whole["$defs"])
    eased = {name: _eased(table) for name, table in whole["$defs"].items()}
    return _eased(whole) | {"$defs": eased, "anyOf": [{"required": ["base"]}, demands]}


def _eased(table: Schema) -> Schema:
    """Return the schema of a table that needs no key."""
    return {key: value for key, value in table.items() if key != "required"}


def _demands(table: Schema, tables: Mapping[str, Schema]) -> Schema:
    """Return only which keys tables need, so that it can be asked of files without a base."""
    needed = {"required": table["required"]} if "required" in table else {}
    inside = {
        where: {key: below for key, value in table[where].items() if (below := _of(value, tables))}
        for where in ("properties", "patternProperties")
        if where in table
    }
    return needed | {where: found for where, found in inside.items() if found}


def _of(value: Schema, tables: Mapping[str, Schema]) -> Schema:
    """Return what the table that a key holds needs, if it holds one."""
    for one in (value, *value.get("anyOf", ())):
        if "$ref" in one:
            return _demands(tables[one["$ref"].rpartition("/")[2]], tables)
        if "$ref" in str(one.get("patternProperties")):
            return _demands(one, tables)
    return {}
