"""Which fitted constants of a topology were measured on its own GPU and links, and whose are not.

A file takes from its base what it does not say. Constants of kernels are its own if they come from
no further down the chain of bases than the name of its GPU does, all of them; those of collectives,
if some come from no further down than its links inside a node. Otherwise they are borrowed from the
file that states them, or from the one that [collectives] names in ``from``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from sim.machine import attention_tables, fabric_kinds

Table = dict[str, Any]

KERNELS = ("gemm", "attention", "memory_kernels")
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    name: (("gpu", name), ("gpu", "name")) for name in KERNELS
} | {"collectives": (("collectives",), ("node", "link"))}
"""By family of constants: its table, and what it was measured on."""


def borrowed(chain: Sequence[tuple[str, Table]]) -> dict[str, str]:
    """Return the families whose constants are another machine's, and the topology of each.

    ``chain`` has the name and the tables of a file, then of its base, of that one's, and so on.

    >>> old = {"gpu": {"name": "A", "gemm": {"ramp": 1}}}
    >>> borrowed([("own", {"gpu": {"name": "B"}}), ("old", old)])
    {'gemm': 'old'}
    """
    out = {}
    for family, (table, measured_on) in FAMILIES.items():
        found = _stated(chain, table, whole=family in KERNELS)
        if found is None:
            continue
        other = _at(chain[found][1], (*table, "from"))
        if other or found > _last_same(chain, measured_on):
            out[family] = other or chain[found][0]
    return out


def _stated(chain: Sequence[tuple[str, Table]], table: Sequence[str], whole: bool) -> int | None:
    """Return how far down the chain a table is stated: the first part of it, or the ``whole``."""
    first: dict[tuple[str, ...], int] = {}
    for k, (_, raw) in enumerate(chain):
        for key in _leaves(_at(raw, table)):
            first.setdefault(key, k)
    return (max if whole else min)(first.values(), default=None)


def _leaves(value: object) -> Iterator[tuple[str, ...]]:
    """Yield the keys of every constant in a table of tables."""
    if not isinstance(value, dict):
        yield from () if value is None else ((),)
        return
    for key, inner in value.items():
        yield from ((key, *keys) for keys in _leaves(inner) if key not in ("source", "from"))


def own_kernels(chain: Sequence[tuple[str, Table]]) -> list[tuple[str, Table]]:
    """Return the chain without kernels of another GPU than the one that has its own.

    A kernel that runs on the base's GPU need not run on this one, and not as well. So a file that
    names a GPU and gives a kernel's table takes no kernel of attention of its bases, and one that
    gives shares of memory-bound kernels none of theirs.

    >>> new = {"gpu": {"name": "B", "attention": {"cudnn": {"keys": 1}}}}
    >>> old = {"gpu": {"name": "A", "attention": {"flash2": {"keys": 2}}}}
    >>> own_kernels([("new", new), ("old", old)])[1]
    ('old', {'gpu': {'name': 'A'}})
    """
    out = list[tuple[str, Table]]()
    own = set[str]()
    for name, raw in chain:
        gpu = raw.get("gpu")
        if own and isinstance(gpu, dict):
            raw = raw | {"gpu": {key: v for key, v in gpu.items() if key not in own}}
        out.append((name, raw))
        if _at(raw, ("gpu", "name")) is not None:
            own |= {
                key for key, names in _APART.items() for k in names if _at(raw, ("gpu", key, k))
            }
    return out


def own_protocols(chain: Sequence[tuple[str, Table]]) -> list[tuple[str, Table]]:
    """Return the chain without protocols for large buffers of another machine's collectives.

    A file that gives a collective's ``simple`` gives what is measured of it: none of its bases has
    a ``simple_large`` to add.

    >>> new = {"collectives": {"nvls": {"simple": {"share": 0.5}}}}
    >>> old = {"collectives": {"nvls": {"simple_large": {"share": 0.6}, "ll": {"share": 0.1}}}}
    >>> own_protocols([("new", new), ("old", old)])[1]
    ('old', {'collectives': {'nvls': {'ll': {'share': 0.1}}}})
    """
    out, given = list[tuple[str, Table]](), set[tuple[str, str]]()
    for name, raw in chain:
        tables = raw.get("collectives")
        if isinstance(tables, dict):
            inner = {key: table for key, table in tables.items() if isinstance(table, dict)}
            kept = {
                key: {k: v for k, v in table.items() if (key, k) not in given}
                for key, table in inner.items()
            }
            raw = raw | {"collectives": tables | kept}
            given |= {(key, f"{k}_large") for key, table in kept.items() for k in table}
        out.append((name, raw))
    return out


_APART = {"attention": attention_tables.KERNELS, "memory_kernels": ("norm",)}
"""Tables of [gpu] that are not merged with another GPU's, and what tells that a file has one."""


def merged(below: Table, above: Table) -> Table:
    """Return the base's tables, with the values of the file itself in place of the base's."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        how = fabric_kinds.merged if key == "fabric" else merged
        out[key] = how(old, value) if both and old is not None else value
    return out


def sentence(of: Mapping[str, str]) -> str:
    """Return what is borrowed, for people; nothing if nothing is.

    >>> sentence({"gemm": "a", "attention": "b"})
    'uncalibrated: gemm priced with the constants of a, attention with those of b'
    """
    words = {name.replace("_", " "): of[name] for name in KERNELS if name in of}
    if len(words) == len(KERNELS) and len({*words.values()}) == 1:
        words = {"kernels": of[KERNELS[0]]}
    if "collectives" in of:
        words["collectives inside a node"] = of["collectives"]
    said = [f"{what} with those of {name}" for what, name in words.items()]
    first = [f"{what} priced with the constants of {name}" for what, name in words.items()]
    return f"uncalibrated: {', '.join([first[0], *said[1:]])}" if said else ""


def _last_same(chain: Sequence[tuple[str, Table]], keys: Sequence[str]) -> int:
    """Return how far down the chain the value is the one that the topology itself has."""
    raws = [raw for _, raw in chain]
    values = [_facts(_at(reduce(merged, raws[k:][::-1]), keys)) for k in range(len(raws))]
    return next((k for k, value in enumerate(values) if value != values[0]), len(values)) - 1


def _facts(value: object) -> object:
    """Return what a table of links says of the hardware, without efficiency and latency."""
    soft = ("source", "efficiency", "latency")
    return {k: v for k, v in value.items() if k not in soft} if isinstance(value, dict) else value


def _at(raw: Table, keys: Sequence[str]) -> Any:
    found: Any = raw
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found
