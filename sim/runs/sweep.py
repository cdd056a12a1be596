"""Sweeps: many configurations of one job, a row of figures each, in a Parquet file that grows.

Rows are written to the file as they come, in the order of the configurations. So a sweep that was
interrupted goes on where it stopped, and ends in the same bytes. A configuration that cannot run
has a row with its reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import joblib
import pyarrow as pa
import pyarrow.parquet as pq

from schedules.input_error import InputError
from sim.engine import DeadlockError
from sim.engine.choice import swept
from sim.files import alone, replacing
from sim.recipe import recipe_file
from sim.runs.compare import Overrides, own_of
from sim.runs.row import row
from sim.runs.run import keeping, run
from sim.runs.workers import unordered

Row = dict[str, Any]
Report = Callable[[str, int, int], object]
FIGURES = {
    "step_time_s": pa.float64(),
    "tokens_per_s": pa.float64(),
    "mfu": pa.float64(),
    "idle_share_of_step": pa.float64(),
    "exposed_s": pa.float64(),
    "peak_bytes": pa.float64(),
    "fits": pa.bool_(),
    "ops": pa.int64(),
    "uncalibrated": pa.string(),
    "refused": pa.string(),
}
"""The columns behind those of the keys, in SI units.

``uncalibrated`` says which constants are another machine's, ``refused`` why a row has no figures.
"""
EVERY = 1.0  # seconds between two writings of the file
NAME = "schedule.name"
BUG = "a bug in traincast: "
"""The begin of a reason that is not the recipe's fault; such rows are tried again."""


def sweep(
    recipe: str | Path,
    vary: Mapping[str, Sequence[object]],
    out: str | Path,
    overrides: Overrides | None = None,
    jobs: int = -1,
    report: Report = lambda *_: None,
) -> list[Row]:
    """Simulate every combination of values, on ``jobs`` processes (-1: as many as there are CPUs).

    The rows that ``out`` already has are kept, if they are of the same recipe, values and version;
    a sweep that is interrupted leaves what it has. Rows are in the order of the combinations.
    Inside :func:`sim.runs.workers.on`, a cluster of Ray or Dask runs them. Raises InputError for a
    recipe that describes no job, and for a file that holds another sweep or that another process
    writes.
    """
    recipe, out = Path(recipe).absolute(), Path(out)  # workers may stand in another folder
    job = _identity(recipe, vary, overrides or {})
    schema = _schema(vary, job)
    with alone(out):
        rows = _all(recipe, vary, out, overrides or {}, jobs, report, job)
    return [
        {k: v for k, v in row.items() if k != "row"} for row in _table(rows, schema).to_pylist()
    ]


def _all(
    recipe: Path,
    vary: Mapping[str, Sequence[object]],
    out: Path,
    common: Overrides,
    jobs: int,
    report: Report,
    job: str,
) -> dict[int, Row]:
    """Return all rows by their number; they are written to the file as they come."""
    chosen, schema = combinations(vary), _schema(vary, job)
    rows = _read(out, job)
    left = [k for k in range(len(chosen)) if k not in rows]
    written = monotonic()
    report("sweep", len(rows), len(chosen))
    try:
        for k, figures in _simulated(recipe, chosen, left, common, jobs):
            rows[k] = {**_keys(vary, chosen[k]), **figures}
            report("sweep", len(rows), len(chosen))
            if monotonic() - written > EVERY:
                _write(out, rows, schema)
                written = monotonic()
    finally:
        if rows:
            _write(out, rows, schema)
    return rows


def combinations(vary: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Return every combination of values; those of the last key change fastest.

    >>> combinations({"a.b": [1, 2], "c.d": [3]})
    [{'a.b': 1, 'c.d': 3}, {'a.b': 2, 'c.d': 3}]
    """
    return [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]


def figures(recipe: Path, overrides: Overrides) -> Row:
    """Return the figures of one configuration, or the reason why it has none.

    If schedules are varied, each gets the overrides it needs, as in ``traincast compare``.
    """
    try:
        if NAME in overrides:
            base = recipe_file.load(recipe, {k: v for k, v in overrides.items() if k != NAME})
            overrides = {**own_of(str(overrides[NAME]), base), **overrides}
        with keeping():
            return row(run(recipe, overrides))
    except (InputError, DeadlockError) as error:
        return {**dict.fromkeys(FIGURES), "refused": " ".join(str(error).splitlines()[0].split())}
    except Exception as error:  # a bug of one configuration should not end the others
        said = f"{BUG}{type(error).__name__}: {error}"
        return {**dict.fromkeys(FIGURES), "refused": said}


def _simulated(
    recipe: Path,
    chosen: Sequence[Overrides],
    left: Sequence[int],
    common: Overrides,
    jobs: int,
) -> Iterator[tuple[int, Row]]:
    """Yield configurations, by their number, and their figures as they are ready."""
    if not left:
        return
    own, run = os.getpid(), joblib.delayed(_numbered)
    calls = (run(k, recipe, {**common, **chosen[k]}, own) for k in left)
    yield from unordered(calls, min(jobs, len(left)))


def _numbered(k: int, recipe: Path, overrides: Overrides, asker: int) -> tuple[int, Row]:
    """Return the number and figures of a configuration; a worker leaves Ctrl-C to its parent."""
    if os.getpid() != asker and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = figures(recipe, overrides)
    if os.getpid() != asker:
        swept(found["ops"] or 0)
    return k, found


def _identity(recipe: Path, vary: Mapping[str, Sequence[object]], common: Overrides) -> str:
    """Return a hash of what a sweep's rows have in common: the full recipe, values and version.

    Raises InputError for a recipe that cannot be read, before anything runs.
    """
    full = recipe_file.load(recipe, common)
    order = Path(recipe).parent / full.schedule.csv if full.schedule.csv else None
    said = [recipe_file.dump(full), {k: [*v] for k, v in vary.items()}, version("traincast")]
    said += [order.read_text(encoding="utf-8")] if order else []
    return hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()


def _keys(vary: Mapping[str, Sequence[object]], values: Overrides) -> Row:
    return {key: _plain(vary[key], values[key]) for key in vary}


def _plain(column: Sequence[object], value: object) -> object:
    """Return the value as a cell of its column; unlike values and lists become JSON."""
    return value if _type(column) != pa.string() or isinstance(value, str) else json.dumps(value)


def _type(column: Sequence[object]) -> pa.DataType:
    kinds = {type(value) for value in column if value is not None}
    for kind, name in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if kinds == {kind}:
            return name
    return pa.float64() if kinds == {int, float} else pa.string()


def _schema(vary: Mapping[str, Sequence[object]], job: str) -> pa.Schema:
    fields = [("row", pa.int64()), *((key, _type(values)) for key, values in vary.items())]
    return pa.schema([*fields, *FIGURES.items()], metadata={"traincast.sweep": job})


def _write(out: Path, rows: Mapping[int, Row], schema: pa.Schema) -> None:
    """Write all rows to the file, which is complete at every moment."""
    with replacing(out) as temporary:
        pq.write_table(_table(rows, schema), temporary)


def _table(rows: Mapping[int, Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{"row": k, **rows[k]} for k in sorted(rows)], schema=schema)


def _read(out: Path, job: str) -> dict[int, Row]:
    """Return the rows of an interrupted sweep; raise InputError for a file of something else."""
    if not out.exists():
        return {}
    try:
        table = pq.read_table(out)
    except PermissionError as error:
        raise InputError(f"cannot read {out}: {error.strerror}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{out} is not a Parquet file; name another file ({error})") from None
    if (table.schema.metadata or {}).get(b"traincast.sweep") != job.encode():
        raise InputError(
            f"{out} holds rows of another recipe, other values or another version; name another "
            "file, or delete it"
        )
    rows = {row.pop("row"): row for row in table.to_pylist()}
    return {k: row for k, row in rows.items() if not (row["refused"] or "").startswith(BUG)}
