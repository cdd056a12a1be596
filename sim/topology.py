"""Reading a topology file: what it says, checked, with numbers in SI units."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import topologies
from sim.units import parse

Table = dict[str, Any]

_UNITS = ("FLOP/s", "B/s", "B", "s")
_CABLE = {"bandwidth": "B/s", "efficiency": "share", "latency": "delay"}
_TABLES: dict[str, dict[str, str]] = {
    "gpu": {"name": "text", "sms": "count", "memory": "B", "memory_bandwidth": "B/s"},
    "gpu.peak": dict.fromkeys(("bf16", "fp16", "tf32", "fp32", "fp8", "fp64"), "FLOP/s"),
    "node": {"gpus": "count"},
    "node.link": _CABLE,
    "node.nic": {"count": "count", **_CABLE},
    "fabric": {
        "kind": "kind",
        "nodes_per_leaf": "count",
        "nodes_per_spine": "count",
        "oversubscription": "ratio",
        "latency": "delay",
        "max_nodes": "count",
    },
}
_OPTIONAL = {"gpu.peak.fp8", "gpu.peak.fp64", "gpu.peak.tf32", "gpu.peak.fp16"}
_OPTIONAL |= {"fabric.nodes_per_leaf", "fabric.nodes_per_spine", "fabric.max_nodes"}
_OPTIONAL |= {"fabric.oversubscription", "node.link.efficiency", "node.nic.efficiency"}
_PROTOCOL = dict.fromkeys(("base", "hop", "inner", "fabric"), "delay")
_PROTOCOL |= {"share": "share", "fabric_share": "share"}
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "p2p", "nvls")
KINDS = ("switch", "rail", "fat_tree")


def read(name_or_path: str | Path) -> Table:
    """The topology of that name, or in that file, as nested tables of floats, ints and text.

    Raises ValueError with one sentence when there is no such topology, it is not TOML, a table is
    missing, a key is unknown, or a value has the wrong unit or is not positive.
    """
    raw = _with_base(str(name_or_path), ())
    where = f"topology {raw.get('name', str(name_or_path))!r}"
    _refuse_unknown(raw, where)
    out: Table = {"name": raw.get("name", Path(name_or_path).stem)}
    for table, keys in _TABLES.items():
        outer, _, inner = table.partition(".")
        checked = dict(_checked(_find(raw, table, where), keys, f"{where}: {table}"))
        if inner:
            out[outer][inner] = checked
        else:
            out[outer] = checked
    out["costs"] = {k: _floats(v) for k, v in raw["gpu"].items() if _is_fitted("gpu", k, v)}
    out["collectives"] = _collectives(raw.get("collectives", {}), f"{where}: collectives")
    _check_fabric(out["fabric"], where)
    return out


def room(spec: Table, gpus: int) -> Table:
    """The same topology, if it can hold so many GPUs; ValueError if not."""
    nodes = -(-gpus // spec["node"]["gpus"])
    most = spec["fabric"].get("max_nodes", nodes)
    if gpus <= 0 or nodes > most:
        known = "max_nodes" in spec["fabric"]
        limit = f"{most * spec['node']['gpus']:,}" if known else "any number"
        raise ValueError(f"topology {spec['name']!r} holds 1 to {limit} GPUs, not {gpus:,}")
    return spec


def _with_base(name: str, seen: tuple[str, ...]) -> Table:
    if name in seen:
        raise ValueError(f"topology {name!r} is its own base")
    try:
        raw = tomllib.loads(_text(name))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"topology {name!r} is not TOML: {error}") from None
    base = raw.pop("base", None)
    return raw if base is None else _merged(_with_base(str(base), (*seen, name)), raw)


def _text(name: str) -> str:
    if not name.endswith(".toml") and "/" not in name:
        return topologies.text(name)
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the topology file {name}: {error}") from None


def _merged(below: Table, above: Table) -> Table:
    """The base's tables, with what the file itself says in place of what the base says."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        out[key] = _merged(old, value) if both and old is not None else value
    return out


def _is_fitted(table: str, key: str, value: object) -> bool:
    return table == "gpu" and isinstance(value, dict) and f"gpu.{key}" not in _TABLES


def _refuse_unknown(raw: Table, where: str) -> None:
    tops = [table for table in _TABLES if "." not in table]
    _refuse(raw, [*tops, "collectives", "name", "source"], where)
    for table, keys in _TABLES.items():
        found = _find(raw, table, where)
        inner = [t.partition(".")[2] for t in _TABLES if t.startswith(f"{table}.")]
        strange = {k: v for k, v in found.items() if not _is_fitted(table, k, v)}
        _refuse(strange, [*keys, *inner, "source"], f"{where}: {table}")


def _refuse(found: Mapping[str, object], known: list[str], where: str) -> None:
    for key in found:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{where} has no key {key!r}; {hint}")


def _find(raw: Table, table: str, where: str) -> Table:
    found: Any = raw
    for key in table.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"{where} lacks the table [{table}]")
    return found


def _checked(table: Table, keys: Mapping[str, str], where: str) -> list[tuple[str, Any]]:
    for key in keys:
        if key not in table and f"{where.rpartition(': ')[2]}.{key}" not in _OPTIONAL:
            raise ValueError(f"{where} lacks {key!r}")
    return [(k, _value(table[k], unit, f"{where}.{k}")) for k, unit in keys.items() if k in table]


def _number(value: object) -> float:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return float(str(value)) if real else math.nan


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda v: isinstance(v, str), "text"),
    "kind": (lambda v: v in KINDS, f"one of {', '.join(KINDS)}"),
    "count": (lambda v: isinstance(v, int) and _number(v) > 0, "a whole number above 0"),
    "share": (lambda v: 0 < _number(v) <= 1, "a number above 0 and at most 1"),
    "ratio": (lambda v: 1 <= _number(v) < math.inf, "a number of at least 1"),
}


def _value(value: object, unit: str, where: str) -> Any:
    if unit not in _RULES:
        return _quantity(value, "s" if unit == "delay" else unit, where, zero=unit == "delay")
    holds, wanted = _RULES[unit]
    if not holds(value):
        raise ValueError(f"{where} is {value!r}; it must be {wanted}")
    return value


def _quantity(value: object, unit: str, where: str, *, zero: bool) -> float:
    try:
        number = parse(value, unit) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ValueError(f"{where} is {value!r}; it must be a number above 0 of {unit}, as text")
    return number


def _floats(value: Any) -> Any:
    """Fitted constants as they are, texts such as "9 us" as floats in SI units."""
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items() if key != "source"}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    if isinstance(value, str):
        for unit in _UNITS:
            with suppress(ValueError):
                return parse(value, unit)
    return value


def _collectives(raw: Any, where: str) -> Table:
    """Per collective and protocol its constants; each may be a table by GPUs per node."""
    tables = {key: value for key, value in raw.items() if key != "source"}
    _refuse(tables, list(_COLLECTIVES), where)
    return {
        name: {
            protocol: _protocol(table, f"{where}.{name}.{protocol}")
            for protocol, table in protocols.items()
            if protocol != "source"
        }
        for name, protocols in tables.items()
    }


def _protocol(table: Any, where: str) -> Table:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is {table!r}; it must be a table of {', '.join(_PROTOCOL)}")
    _refuse(table, list(_PROTOCOL), where)
    return {key: _by_size(value, _PROTOCOL[key], f"{where}.{key}") for key, value in table.items()}


def _by_size(value: object, unit: str, where: str) -> Any:
    if not isinstance(value, dict):
        return _value(value, unit, where)
    for size in value:
        if not size.isdecimal() or not int(size):
            raise ValueError(f"{where} has the key {size!r}; it must be a number of GPUs per node")
    return {size: _value(item, unit, f"{where}.{size}") for size, item in value.items()}


def _check_fabric(fabric: Table, where: str) -> None:
    tiers = {"nodes_per_leaf", "nodes_per_spine", "oversubscription"} & fabric.keys()
    if fabric["kind"] == "switch" and tiers:
        raise ValueError(f"{where}: fabric of kind 'switch' takes no {', '.join(sorted(tiers))}")
    if fabric["kind"] != "switch" and "nodes_per_leaf" not in fabric:
        raise ValueError(f"{where}: fabric of kind {fabric['kind']!r} needs 'nodes_per_leaf'")
