"""The table of a search: a row for each layout or group looked at, in a Parquet file.

A cell of a group is empty where its members differ. What a search has tried stands there too while
it runs, so that it can go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schedules.input_error import InputError
from sim.files import replacing
from sim.machine.assumed import changed
from sim.runs.sweep import FIGURES
from sim.search.searching import Place, Search
from sim.search.space import Space
from sim.search.tried import Judged, Row

WHOLE = (
    "cluster.gpus", "parallelism.tp", "parallelism.cp", "parallelism.pp", "parallelism.dp",
    "parallelism.ep", "parallelism.etp", "parallelism.zero", "training.micro_batch",
    "schedule.chunks",
)  # fmt: skip
FOUND = {
    "outcome": pa.string(),
    "cost": pa.float64(),
    "bound_s": pa.float64(),
    "least_bytes": pa.float64(),
    **FIGURES,
    "main_cause": pa.string(),
    "main_cause_s": pa.float64(),
    "energy_j": pa.float64(),
}
"""The columns behind those of the keys, in SI units. ``outcome`` is ``simulated``, or why there is
no time: ``memory`` (does not fit), ``bound`` (cannot be better), ``budget`` (it could be, and the
budget was spent) or ``refused``. ``cost`` is in the unit of the objective."""
ORDER = ("simulated", "budget", "bound", "memory", "refused")
_PLACE = pa.list_(pa.int64(), 3)


def schema(space: Space, identity: str) -> pa.Schema:
    """Return the columns of a search."""
    keys = [(key, pa.int64() if key in WHOLE else pa.string()) for key in space.keys]
    own = [("simulated", pa.bool_()), ("examined", pa.bool_()), ("place", _PLACE)]
    columns = [*keys, *FOUND.items(), *own]
    return pa.schema(columns, metadata={"traincast.search": identity})


def identity(spaces: Sequence[Space], objective: str) -> str:
    """Return a hash of what rows of a search depend on: recipe, machine, space and version."""
    said: list[object] = [version("traincast"), objective, repr(changed())]
    for space in spaces:
        said += [space.data, space.gpus, space.given, space.common, space.machine, space.keys]
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()


def rows(search: Search) -> list[Row]:
    """Return all rows, the best layouts first: simulated ones, and then what was not, and why."""
    out = [{**row, "place": place, "examined": True} for place, row in search.tried.items()]
    out += [_left(place, of, "memory") for place, of in search.full.items()]
    limit = search.limit
    for turn in search.waiting:
        reason = "budget" if turn.cost < limit else "bound"
        out.append(_left(turn.place, turn.judged, reason))
    return sorted(out, key=rank)


def _left(place: Place, of: Judged, outcome: str) -> Row:
    bound = of.bound if of.fits else None
    return {
        "outcome": outcome, "bound_s": bound, "least_bytes": of.bytes, **of.layout, "place": place,
        "simulated": False, "examined": False,
    }  # fmt: skip


def rank(row: Row) -> tuple[Any, ...]:
    """Return the place of a row: of equally good layouts, the one with fewer bytes is first."""
    cost, held = (inf if row.get(key) is None else row[key] for key in ("cost", "peak_bytes"))
    bound = inf if row.get("bound_s") is None else row["bound_s"]
    return ORDER.index(row["outcome"]), cost, held, bound, row["place"]


def written(found: Sequence[Mapping[str, Any]], of: pa.Schema) -> pa.Table:
    """Return rows as a table; a value that is a table or a list is written as JSON."""
    return pa.Table.from_pylist([{k: _cell(row.get(k), of.field(k)) for k in of.names}
                                 for row in found], schema=of)  # fmt: skip


def _cell(value: Any, field: pa.Field) -> Any:
    if field.type == pa.string() and value is not None and not isinstance(value, str):
        return json.dumps(value)
    return list(value) if isinstance(value, tuple) else value


def write(path: Path, found: Sequence[Mapping[str, Any]], of: pa.Schema) -> None:
    """Write the rows of a search; the file is complete always."""
    with replacing(path) as temporary:
        pq.write_table(written(found, of), temporary)


def save(path: Path, known: Mapping[Place, Row], of: pa.Schema) -> None:
    """Write only what has been tried, which is what an interrupted search goes on from."""
    some = [{**row, "place": place, "examined": True} for place, row in sorted(known.items())]
    write(path, some, of)


def known(path: Path, of: pa.Schema) -> dict[Place, Row]:
    """Return what an earlier run has tried; raise InputError for a file of something else."""
    if not path.exists():
        return {}
    try:
        table = pq.read_table(path)
    except PermissionError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is not a Parquet file; name another folder ({error})") from None
    if (table.schema.metadata or {}).get(b"traincast.search") != of.metadata[b"traincast.search"]:
        raise InputError(
            f"{path} holds a search of another recipe, other values or another version; name "
            "another folder, or delete it"
        )
    return {
        (row["place"][0], row["place"][1], row["place"][2]): _tried(row)
        for row in table.to_pylist()
        if row["simulated"] or row["examined"]
    }


def _tried(row: Mapping[str, Any]) -> Row:
    """Return what a worker had found of a row."""
    figures = [*FIGURES, "main_cause", "main_cause_s", "energy_j"]
    keys = figures if row["simulated"] else ["least_bytes"]
    return {key: row[key] for key in ("outcome", "simulated", *keys)}
