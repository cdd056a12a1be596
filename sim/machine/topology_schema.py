"""The JSON schema of topology files for editors, with the meaning of every key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim import units
from sim.machine.attention_tables import KERNELS
from sim.machine.fabric_kinds import KINDS, SHAPE
from sim.machine.topology import NAMES, UNITS, WORD, tables
from sim.machine.topology_meanings import MEANINGS, TABLES

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1}
_TOP = {
    "base": "topology from which this one takes what it does not say: a name, or a TOML file",
    "name": "what the topology is called; the file's name unless given",
    "source": "where the values come from",
}
_KINDS: dict[str, Schema] = {
    "text": _TEXT,
    "kind": {"enum": list(KINDS)},
    "shape": {"type": "string", "pattern": f"^{SHAPE}$"},
    "kernel": {"enum": list(KERNELS)},
    "word": {"type": "string", "pattern": f"^{WORD}$"},
    "count": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    "sms": {"type": "integer", "minimum": 0, "unit": "SMs"},
    "share": {"type": "number", "minimum": 1e-6, "maximum": 1},
    "part": {"type": "number", "minimum": 0, "maximum": 1},
    "ratio": {"type": "number", "minimum": 1, "maximum": 1e6},
    "amount": {"type": "number", "minimum": 0, "maximum": 1e6},
    "exponent": {"type": "number", "minimum": 1, "maximum": 10},
    "weight": {"type": "number", "minimum": 0, "maximum": 10},
    "factor": {"type": "number", "minimum": 1e-6, "maximum": 1e24},
}
_EXAMPLES = {"FLOP/s": "989 TFLOP/s", "B/s": "450 GB/s", "B": "80 GiB", "s": "1.5 us", "W": "700 W"}


def complete() -> Schema:
    """Return the schema of a topology without a base, which has to say everything."""
    out = _table({}, "")
    out["properties"] = {key: _TEXT | {"description": text} for key, text in _TOP.items()}
    for name, keys in tables().items():
        at, where = out, ""
        for part in name.split("."):
            where = f"{where}.{part}".strip(".")
            at = _inside(at, part, where)
        at["properties"] = _table(keys, name)["properties"] | at["properties"]
        at["required"] += [key for key, (_, needed) in keys.items() if needed]
    for part in ("gpu", "node", "fabric"):
        out["required"].append(part)
    out["properties"]["gpu"]["required"].append("peak")
    out["properties"]["node"]["required"] += ["link", "nic"]
    return out


def json_schema() -> Schema:
    """Return the JSON schema of topology files: with a base, anything may be left out."""
    whole = complete()
    return _eased(whole) | {"anyOf": [{"required": ["base"]}, _demands(whole)]}


def _table(keys: Mapping[str, tuple[str, bool]], name: str) -> Schema:
    """Return the schema of a table with its own keys; the caller fills in which it needs."""
    said = {
        key: _value(kind, "PROTOCOL" in name) | {"description": MEANINGS[name][key]}
        for key, (kind, _) in keys.items()
    }
    said["source"] = _TEXT | {"description": _TOP["source"]}
    about = {"description": TABLES[name]} if name in TABLES else {}
    return {
        "type": "object",
        "additionalProperties": False,
        **about,
        "properties": said,
        "required": [],
    }


def _inside(table: Schema, part: str, name: str) -> Schema:
    """Return the table of this name inside another; it is made if it is not there yet."""
    if part not in NAMES:
        found: Schema = table["properties"].setdefault(part, _table({}, name))
        return found
    named = table.setdefault("patternProperties", {})
    fresh = _table({}, name) | {"title": part}
    inner: Schema = named.setdefault(f"^({'|'.join(NAMES[part])})$", fresh)
    return inner


def _value(kind: str, by_size: bool) -> Schema:
    """Return the schema of a value; ``by_size`` also allows a table of values by GPUs per node."""
    if kind == "shares":
        return _value("share", by_size=True)
    if kind in _KINDS:
        one = _KINDS[kind]
    else:
        unit = UNITS.get(kind, kind)
        example = {"examples": [_EXAMPLES[unit]], "unit": unit}
        one = {"type": "string", "pattern": units.pattern(unit), **example}
    sizes = {"type": "object", "patternProperties": {"^[1-9][0-9]{0,5}$": one}, "minProperties": 1}
    return {"anyOf": [one, sizes | {"additionalProperties": False}]} if by_size else one


def _eased(schema: Schema) -> Schema:
    """Return the same schema, in which no table needs a key."""
    return {
        key: {name: _eased(inner) for name, inner in value.items()} if "roperties" in key else value
        for key, value in schema.items()
        if key not in ("required", "additionalProperties")
    } | ({"additionalProperties": False} if "additionalProperties" in schema else {})


def _demands(schema: Schema) -> Schema:
    """Return only which keys tables need, so that it can be asked of files without a base."""
    inner = {
        key: {n: _demands(one) for n, one in schema[key].items() if one.get("type") == "object"}
        for key in ("properties", "patternProperties")
        if key in schema
    }
    return {"required": schema["required"]} | inner if "required" in schema else {}
