"""Reading a topology file: its tables, checked, with numbers in SI units."""

from __future__ import annotations

import os
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import topologies
from schedules.input_error import InputError
from sim.files import read_text, toml
from sim.keys.refusals import brief
from sim.machine import fabric_kinds, torus
from sim.machine.declared.refusals import sentence
from sim.machine.declared.topology import Topology
from sim.machine.provenance import borrowed, merged, own_kernels, own_protocols
from sim.machine.tiers import inside

Table = dict[str, Any]

MOST_GPUS = 131_072
"""The most GPUs that are simulated."""
FITTED = ("gemm", "attention", "memory_kernels", "runtime", "power", "communication")
"""The tables of [gpu] that hold what was fitted or measured."""
_BASES = 16  # the longest chain of bases


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
        return _checked(raw, where) | {"borrowed": borrowed(chain)}
    except RecursionError:
        raise InputError(f"{where} nests its tables too deeply to be read") from None


def _checked(raw: Table, where: str) -> Table:
    """Return the tables of a whole topology as values, those of fitted constants apart."""
    try:
        out = Topology.model_validate(raw).model_dump(by_alias=True, exclude_unset=True)
    except ValidationError as error:
        raise InputError(sentence(error, where)) from None
    inside(out)
    fabric_kinds.check(out["fabric"], out["node"]["nic"]["count"], where)
    out["costs"] = {name: out["gpu"].pop(name) for name in FITTED if name in out["gpu"]}
    return {"collectives": {}} | out


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
    if not isinstance(base, str) or not base:
        raise InputError(f"topology {name!r}: base = {brief(base)} must be text")
    return here + _chain(base, path.parent if path else Path(), (*seen, found))


def _shipped(name: str) -> str:
    there = topologies.names()
    near = [] if name in there else get_close_matches(name.lower(), there, 1)
    if near:
        raise InputError(
            f"no topology {name!r}; did you mean {near[0]}? There are {', '.join(there)}"
        )
    return topologies.text(name)
