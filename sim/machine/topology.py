"""Reading a topology file: its tables, checked, with numbers in SI units."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

import topologies
from schedules.input_error import InputError
from sim.files import read_text, toml
from sim.machine import fabric_kinds, torus
from sim.machine.attention_tables import CHOSEN, NEEDED
from sim.machine.attention_tables import KERNELS as KERNELS_OF_ATTENTION
from sim.machine.fabric_kinds import KINDS, SHAPE
from sim.machine.provenance import borrowed, merged, own_kernels, own_protocols
from sim.machine.tiers import inside
from sim.units import parse

Table = dict[str, Any]

MOST_GPUS = 131_072
"""The most GPUs that are simulated."""
_BASES = 16  # the longest chain of bases
_CABLE = {"bandwidth": "B/s", "efficiency": "share", "latency": "delay"}
_TABLES: dict[str, dict[str, str]] = {
    "gpu": {
        "name": "text",
        "sms": "count",
        "memory": "B",
        "memory_bandwidth": "B/s",
        "host_bandwidth": "B/s",
        "host_memory_bandwidth": "B/s",
        "spread": "part",
    },
    "gpu.peak": dict.fromkeys(("bf16", "fp16", "tf32", "fp32", "fp8", "fp64"), "FLOP/s"),
    "node": {"gpus": "count"},
    "node.link": {"kind": "word", "gpus": "count", **_CABLE},
    "node.nic": {"count": "count", "from": "word", **_CABLE},
    "fabric": {
        "kind": "kind",
        "nodes_per_leaf": "count",
        "nodes_per_spine": "count",
        "oversubscription": "ratio",
        "spine_oversubscription": "ratio",
        "rails": "count",
        "leaves_per_group": "count",
        "local_bandwidth": "B/s",
        "global_bandwidth": "B/s",
        "shape": "shape",
        "link_bandwidth": "B/s",
        "latency": "delay",
        "max_nodes": "count",
    },
}
_OPTIONAL = {"gpu.peak.fp8", "gpu.peak.fp64", "gpu.peak.tf32", "gpu.peak.fp16"}
_OPTIONAL |= {"gpu.host_bandwidth", "gpu.host_memory_bandwidth", "gpu.spread"}
_OPTIONAL |= {f"fabric.{key}" for key in _TABLES["fabric"]} - {"fabric.kind", "fabric.latency"}
_OPTIONAL |= {"node.link.efficiency", "node.nic.efficiency"}
_OPTIONAL |= {"node.link.kind", "node.link.gpus", "node.nic.from"}
_TIER = {"from": "word", "kind": "word", "gpus": "count", **_CABLE}
_TIER_OPTIONAL = ("kind", "gpus", "efficiency")
_PROTOCOL = dict.fromkeys(("base", "hop", "inner", "fabric"), "delay")
_PROTOCOL |= {"share": "share", "fabric_share": "share"}
_SWITCHED = ("nvls", "nvls_tree", "tree")
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", *_SWITCHED)
_TUNER = {"ll128": "B/s", "nvls_tree": "B/s"}
_FROM = {"from": "text"}  # read by sim.machine.provenance alone
_KERNELS = ("norm", "elementwise", "softmax", "embedding", "cross_entropy", "optimizer")
_VARIANTS = ("norm_backward", "mxfp8", "gather", "scatter", "eager_gather", "eager_scatter")
_SENT = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p")
_TILES = ("tile_256x128", "tile_128x128", "tile_128x64", "tile_64x64")
FITTED: dict[str, dict[str, str]] = {
    "gemm": {
        **dict.fromkeys(_TILES, "share"),
        "ramp": "amount",
        "quantisation": "part",
        "split": "factor",
        "derating": "amount",
        "derating_seconds": "window",
        "accumulate": "amount",
        "memory": "share",
        "fixed": "delay",
    },
    "attention": {
        "forward": "shares",
        "backward": "shares",
        "keys": "amount",
        "backward_keys": "amount",
        "masked": "amount",
        "head_dim": "amount",
        "quantisation": "part",
        "memory": "share",
        "fixed": "delay",
    },
    "memory_kernels": {"fixed": "delay", **dict.fromkeys((*_KERNELS, *_VARIANTS), "share")},
}
"""The tables of fitted constants in [gpu]; gemm has one such table per dtype, attention one per
kernel. All keys are required, but for some of attention and those of ``_VARIANTS``."""
_OPTIONAL |= {f"gpu.memory_kernels.{name}" for name in _VARIANTS}
_ATTENTION_OPTIONAL = FITTED["attention"].keys() - NEEDED
for _table in ("", *(f".{kernel}" for kernel in KERNELS_OF_ATTENTION)):
    _OPTIONAL |= {f"gpu.attention{_table}.{key}" for key in _ATTENTION_OPTIONAL}
_RUNTIME = {"context": "B", "workspace": "B", "channels": "count", "connection": "B"}
_POWER_MEASURED = {"exponent": "exponent", "memory": "weight", "attention": "weight"}
_POWER = {"rated": "W", "cap": "W", "idle": "W", **_POWER_MEASURED}
_OPTIONAL |= {f"gpu.power.{key}" for key in _POWER_MEASURED}
_CONTENTION = {"contention": "part"}
_COMMUNICATION = {
    "sms": dict.fromkeys((*_SENT, "exchange", "fabric", "fabric_p2p", "nvls"), "sms"),
    "hbm": dict.fromkeys(_SENT, "amount"),
}
WORD = "[a-z][a-z0-9_]{0,19}"
_PROTOCOLS = ("simple", "simple_large", "ll", "ll128", "ll128_large")
NAMES = {"DTYPE": tuple(_TABLES["gpu.peak"]), "COLLECTIVE": _COLLECTIVES, "PROTOCOL": _PROTOCOLS}
NAMES |= {"TIER": (WORD,), "KERNEL": KERNELS_OF_ATTENTION}
"""The names, or a pattern of names, that each word in capitals of :func:`tables` stands for."""


def read(name_or_path: str | Path, above: Table | None = None) -> Table:
    """Return the topology of this name, or in this file, as nested tables of floats, ints and text.

    ``above`` has tables of a file that takes the rest from it. Raises InputError, in one sentence,
    when there is no such topology, it is not TOML, a table is missing, a key is unknown, or a value
    has the wrong unit or is not positive.
    """
    where = f"topology {str(name_or_path)!r}"
    try:
        files = _chain(str(name_or_path), Path(), ())
        chain = own_protocols(own_kernels([("above", above), *files] if above else files))
        raw = reduce(merged, [raw for _, raw in reversed(chain)])
        raw["name"] = files[0][1].get("name", Path(name_or_path).stem)  # no name of a base's
        return _read(raw, where) | {"borrowed": borrowed(chain)}
    except RecursionError:
        raise InputError(f"{where} nests its tables too deeply to be read") from None


def _read(raw: Table, where: str) -> Table:
    _refuse_unknown(raw, where)
    out: Table = {"name": _value(raw["name"], "text", f"{where}: name")}
    for table, keys in _TABLES.items():
        outer, _, inner = table.partition(".")
        checked = dict(_checked(_find(raw, table, where), keys, f"{where}: {table}"))
        if inner:
            out[outer][inner] = checked
        else:
            out[outer] = checked
    if "tiers" in raw["node"]:
        out["node"]["tiers"] = _tiers(raw["node"]["tiers"], f"{where}: node.tiers")
    inside(out)
    out["costs"] = _costs(raw["gpu"], out["gpu"], where)
    out["collectives"] = _collectives(raw.get("collectives", {}), f"{where}: collectives")
    fabric_kinds.check(out["fabric"], out["node"]["nic"]["count"], where)
    return out


def tables() -> dict[str, dict[str, tuple[str, bool]]]:
    """Return every table that a file may have: each key's kind of value, and whether it is needed.

    A word in capitals in a dotted name stands for several names; see :data:`NAMES`.
    """
    nested = {f"gpu.{name}": keys for name, keys in FITTED.items() if name != "gemm"}
    nested["gpu.attention"] = FITTED["attention"] | dict.fromkeys(CHOSEN, "kernel")
    nested |= {"gpu.attention.KERNEL": FITTED["attention"]}
    nested |= {"gpu.gemm.DTYPE": FITTED["gemm"], "gpu.runtime": _RUNTIME, "gpu.power": _POWER}
    nested |= {"gpu.communication": _CONTENTION}
    nested |= {f"gpu.communication.{name}": keys for name, keys in _COMMUNICATION.items()}
    nested |= {"node.tiers.TIER": _TIER}
    protocol = {key: (kind, key == "base") for key, kind in _PROTOCOL.items()}
    left_out = {*_OPTIONAL, "gpu.communication.sms.nvls", "gpu.communication.contention"}
    left_out |= {f"node.tiers.TIER.{key}" for key in _TIER_OPTIONAL}
    left_out |= {f"gpu.attention.{key}" for key in nested["gpu.attention"]}
    left_out |= {f"gpu.attention.KERNEL.{key}" for key in _ATTENTION_OPTIONAL}
    return {
        name: {key: (kind, f"{name}.{key}" not in left_out) for key, kind in keys.items()}
        for name, keys in (_TABLES | nested).items()
    } | {
        "collectives": {key: (kind, False) for key, kind in _FROM.items()},
        "collectives.tuner": {key: (kind, True) for key, kind in _TUNER.items()},
        "collectives.COLLECTIVE.PROTOCOL": protocol,
    }


def room(spec: Table, gpus: int) -> Table:
    """Return the topology if it can hold ``gpus`` GPUs.

    Raises InputError if it cannot.
    """
    nodes = -(-gpus // spec["node"]["gpus"])
    fabric = spec["fabric"]
    known = [fabric["max_nodes"]] if "max_nodes" in fabric else []
    known += [torus.room(fabric)] if fabric["kind"] == "torus" else []
    most = min(known, default=nodes)
    if gpus <= 0 or nodes > most or gpus > MOST_GPUS:
        limit = min(most * spec["node"]["gpus"], MOST_GPUS) if known else MOST_GPUS
        raise InputError(f"topology {spec['name']!r} holds 1 to {limit:,} GPUs, not {gpus:,}")
    return spec


def _chain(name: str, folder: Path, seen: tuple[str, ...]) -> list[tuple[str, Table]]:
    """Return a topology's name and tables, then its base's, whose path starts at the file."""
    path = folder / name if name.endswith(".toml") or "/" in name else None
    found = name if path is None else os.path.realpath(path)
    if found in seen or len(seen) > _BASES:
        raise InputError(f"topology {name!r} is its own base, or has more than {_BASES} of them")
    text = _shipped(name) if path is None else read_text(path, "the topology file ")
    raw = toml(text, f"topology {name!r}")
    base = raw.pop("base", None)
    here = [(Path(name).stem if path else name, raw)]
    if base is None:
        return here
    _value(base, "text", f"topology {name!r}: base")
    return here + _chain(base, path.parent if path else Path(), (*seen, found))


def _shipped(name: str) -> str:
    near = get_close_matches(name.lower(), topologies.names(), 1)
    if near and near != [name]:
        there = ", ".join(topologies.names())
        raise InputError(f"no topology {name!r}; did you mean {near[0]}? There are {there}")
    return topologies.text(name)


def _refuse_unknown(raw: Table, where: str) -> None:
    tops = [table for table in _TABLES if "." not in table]
    _refuse(raw, [*tops, "collectives", "name", "source"], where)
    for table, keys in _TABLES.items():
        found = _find(raw, table, where)
        inner = [t.partition(".")[2] for t in _TABLES if t.startswith(f"{table}.")]
        inner += [*FITTED, "communication", "runtime", "power"] if table == "gpu" else []
        inner += ["tiers"] if table == "node" else []
        _refuse(found, [*keys, *inner, "source"], f"{where}: {table}")


def _refuse(found: Mapping[str, object], known: list[str], where: str) -> None:
    for key in found:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"{where} has no key {_shown(key)}; {hint}")


def _find(raw: Table, table: str, where: str) -> Table:
    found: Any = raw
    for key in table.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise InputError(f"{where} lacks the table [{table}]; {_ADVICE}")
    return found


def _checked(table: Table, keys: Mapping[str, str], where: str) -> list[tuple[str, Any]]:
    for key in keys:
        if key not in table and f"{where.rpartition(': ')[2]}.{key}" not in _OPTIONAL:
            raise InputError(f"{where} lacks {key!r}; {_ADVICE}")
    return [(k, _value(table[k], unit, f"{where}.{k}")) for k, unit in keys.items() if k in table]


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _shown(value: object) -> str:
    try:
        said = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too long to show"
    return said if len(said) <= 60 else f"{said[:57]}..."


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda v: isinstance(v, str) and v != "", "text"),
    "word": (
        lambda v: isinstance(v, str) and re.fullmatch(WORD, v) is not None,
        "a word of small letters, digits and _, 20 at most, that begins with a letter",
    ),
    "kind": (lambda v: v in KINDS, f"one of {', '.join(KINDS)}"),
    "shape": (
        lambda v: isinstance(v, str) and re.fullmatch(SHAPE, v) is not None,
        "the nodes along each dimension, such as '4x4x8'",
    ),
    "count": (
        lambda v: isinstance(v, int) and 0 < _number(v) <= 1e6,
        "a whole number above 0 and at most 1,000,000",
    ),
    "share": (lambda v: 1e-6 <= _number(v) <= 1, "a number above 0 (from 1e-6) and at most 1"),
    "part": (lambda v: 0 <= _number(v) <= 1, "a number of at least 0 and at most 1"),
    "ratio": (lambda v: 1 <= _number(v) <= 1e6, "a number of at least 1 and at most 1e6"),
    "amount": (lambda v: 0 <= _number(v) <= 1e6, "a number of at least 0 and at most 1e6"),
    "exponent": (lambda v: 1 <= _number(v) <= 10, "a number of at least 1 and at most 10"),
    "weight": (lambda v: 0 <= _number(v) <= 10, "a number of at least 0 and at most 10"),
    "factor": (lambda v: 1e-6 <= _number(v) <= 1e24, "a number above 0 (1e-6 to 1e24)"),
}
_RANGES = {
    "FLOP/s": (1e6, 1e21),
    "B/s": (1e3, 1e18),
    "B": (1e6, 1e18),
    "delay": (0.0, 1e3),
    "window": (1e-6, 1e3),
    "W": (1.0, 1e5),
}
UNITS = {"delay": "s", "window": "s"}
"""The unit of a kind of quantity; others are called by theirs."""
_SUCH = {"s": "2 us", "W": "700 W"}
_ADVICE = 'base = "dgx_a100", or another topology that has it, or a copy of its table would do'


def _value(value: object, unit: str, where: str) -> Any:
    if unit == "shares":
        return _by_size(value, "share", where, "head dimension")
    if unit not in _RULES:
        return _quantity(value, unit, where)
    holds, wanted = _RULES[unit]
    if not holds(value):
        raise InputError(f"{where} is {_shown(value)}; it must be {wanted}")
    return value


def _quantity(value: object, kind: str, where: str) -> float:
    (low, high), unit = _RANGES[kind], UNITS.get(kind, kind)
    try:
        number = parse(value, unit) if isinstance(value, str) else math.nan
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        least = f"above 0 (from {low:g})" if low else "of at least 0"
        raise InputError(
            f"{where} is {_shown(value)}; it must be a number {least} and at most {high:g} "
            f"of {unit}, as text such as {_SUCH.get(unit, f'2 T{unit}')!r}"
        )
    return number


def _within(value: object, keys: Mapping[str, object], where: str) -> Table:
    """Return a table without its source; it may have no keys other than ``keys``."""
    if not isinstance(value, dict):
        raise InputError(f"{where} is {_shown(value)}; it must be a table of {', '.join(keys)}")
    _refuse(value, [*keys, "source"], where)
    return {key: item for key, item in value.items() if key != "source"}


def _tiers(raw: object, where: str) -> Table:
    """Return the tiers inside a node besides that of [node.link], in the order of the file."""
    if not isinstance(raw, dict):
        raise InputError(f"{where} is {_shown(raw)}; it must be a table of tables, one per tier")
    out: Table = {}
    for name, table in raw.items():
        _value(name, "word", f"{where}: the name of a tier")
        found = _within(table, _TIER, f"{where}.{name}")
        lacking = [key for key in _TIER if key not in found and key not in _TIER_OPTIONAL]
        if lacking:
            raise InputError(
                f"{where}.{name} lacks {lacking[0]!r}; it takes {', '.join(_TIER)} and a source"
            )
        out[name] = {
            key: _value(of, _TIER[key], f"{where}.{name}.{key}") for key, of in found.items()
        }
    return out


def _costs(raw: Table, gpu: Table, where: str) -> Table:
    """Return the fitted tables that [gpu] has, each of them complete."""
    out: Table = {}
    for name, keys in FITTED.items():
        if name not in raw:
            continue
        place = f"{where}: gpu.{name}"
        if name == "gemm":
            by_dtype = _within(raw[name], gpu["peak"], place)
            if "bf16" not in by_dtype:
                raise InputError(f"{place} lacks the table 'bf16'; {_ADVICE}")
            out[name] = {d: _fitted(t, keys, f"{place}.{d}") for d, t in by_dtype.items()}
        elif name == "attention":
            out[name] = _attention(raw[name], place)
        else:
            out[name] = _fitted(raw[name], keys, place)
    if "runtime" in raw:
        out["runtime"] = _fitted(raw["runtime"], _RUNTIME, f"{where}: gpu.runtime")
    if "power" in raw:
        out["power"] = _power(raw["power"], f"{where}: gpu.power")
    if "communication" in raw:
        out["communication"] = _communication(raw["communication"], gpu["sms"], where)
    return out


def _fitted(table: object, keys: Mapping[str, str], where: str) -> Table:
    return dict(_checked(_within(table, keys, where), keys, where))


def _attention(raw: object, where: str) -> Table:
    """Return constants for all kernels of attention, a table per kernel, and who chooses which."""
    keys, chosen = FITTED["attention"], dict.fromkeys(CHOSEN)
    found = _within(raw, keys | chosen | dict.fromkeys(KERNELS_OF_ATTENTION), where)
    tables = {name: found[name] for name in KERNELS_OF_ATTENTION if name in found}
    own = {key: kind for key, kind in keys.items() if key in found or not tables}
    out = dict(_checked(found, own, where))
    out |= {name: _fitted(table, keys, f"{where}.{name}") for name, table in tables.items()}
    for name in chosen.keys() & found.keys():
        if not isinstance(found[name], str) or found[name] not in tables:
            there = ", ".join(tables)
            raise InputError(f"{where}.{name} is {_shown(found[name])}; it must be one of {there}")
        out[name] = found[name]
    return out


def _power(table: object, where: str) -> Table:
    """Return the watts at which a board was measured, at which it runs, and that it takes idle."""
    out = _fitted(table, _POWER, where)
    if not out["idle"] < min(out["cap"], out["rated"]):
        raise InputError(f"{where}.idle is {out['idle']:g} W; it must be below cap and rated")
    return out


def _communication(table: object, sms: int, where: str) -> Table:
    """Return the SMs that communication kernels hold, and their memory traffic per byte sent."""
    place = f"{where}: gpu.communication"
    given = _within(table, dict.fromkeys((*_COMMUNICATION, *_CONTENTION)), place)
    own = {key: kind for key, kind in _CONTENTION.items() if key in given}
    out: Table = dict(_checked(given, own, place))
    tables = {name: given[name] for name in _COMMUNICATION if name in given}
    out |= {name: _taken(found, name, sms, place) for name, found in tables.items()}
    for name, keys in _COMMUNICATION.items():
        lacking = [key for key in keys if key not in out.get(name, {}) and key != "nvls"]
        if lacking:
            raise InputError(f"{place} lacks {name}.{lacking[0]}; {_ADVICE}")
    return out


def _taken(table: object, name: str, sms: int, where: str) -> Table:
    """Return what communication takes of SMs or of memory bandwidth, as ``name`` says."""
    keys, place = _COMMUNICATION[name], f"{where}.{name}"
    out = _within(table, keys, place)
    for key, value in out.items():
        if keys[key] != "sms":
            _value(value, keys[key], f"{place}.{key}")
        elif not isinstance(value, int) or not 0 <= _number(value) <= sms:
            raise InputError(
                f"{place}.{key} is {_shown(value)}; "
                f"it must be a whole number from 0 to gpu.sms = {sms}"
            )
    return out


def _collectives(raw: Any, where: str) -> Table:
    """Return the constants per collective and protocol; each may be a table by GPUs per node."""
    names = dict.fromkeys((*_COLLECTIVES, *_FROM, "tuner"))
    protocols = dict.fromkeys(_PROTOCOLS)
    raw = dict(_within(raw, names, where))
    tuner = raw.pop("tuner", None)
    chosen = {} if tuner is None else {"tuner": _fitted(tuner, _TUNER, f"{where}.tuner")}
    return chosen | {
        name: {
            protocol: _protocol(table, f"{where}.{name}.{protocol}")
            for protocol, table in _within(tables, protocols, f"{where}.{name}").items()
        }
        for name, tables in raw.items()
        if name not in _FROM or not _value(tables, _FROM[name], f"{where}.{name}")
    }


def _protocol(raw: Any, where: str) -> Table:
    table = _within(raw, _PROTOCOL, where)
    for key, other in (("base", "base"), ("share", "fabric_share")):  # the others have defaults
        if key not in table and other not in table:
            raise InputError(f"{where} lacks {key!r}; {_ADVICE}")
    return {key: _by_size(value, _PROTOCOL[key], f"{where}.{key}") for key, value in table.items()}


def _by_size(value: object, unit: str, where: str, of: str = "number of GPUs per node") -> Any:
    if not isinstance(value, dict):
        return _value(value, unit, where)
    if not value:
        raise InputError(f"{where} is an empty table; give a value per {of}")
    for size in value:
        if not re.fullmatch("[1-9][0-9]{0,5}", size):
            raise InputError(f"{where} has the key {_shown(size)}; it must be a {of}")
    return {size: _value(item, unit, f"{where}.{size}") for size, item in value.items()}
