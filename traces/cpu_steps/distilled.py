"""Writes and reads our small file of a run, ``MODE.json.gz``: measurements, and one step."""

from __future__ import annotations

import gzip
import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from schedules.input_error import InputError
from sim.files import replacing
from traces.cpu_steps.rows import OperatorRow, rows
from traces.cpu_steps.run import CpuRun, Leaf, Moved, RankStep
from traces.cpu_steps.source import Measured
from traces.packed import beginning, content

FORMAT = "traincast CPU steps 1"
_MARK = f'{{"format":"{FORMAT}"'.encode()
_TABLES = {"leaves": Leaf, "moved": Moved, "ranks": RankStep}


def recognises(path: Path) -> bool:
    """Return whether :func:`write` wrote this file."""
    return beginning(path, len(_MARK)) == _MARK


def write(path: Path, of: Measured) -> Path:
    """Write a run and the rows of its step of median length; the same run gives the same bytes."""
    run = of.run
    kept = median(run.profiled_s)
    file = {
        "format": FORMAT,
        **{f.name: getattr(run, f.name) for f in fields(run) if f.name not in {*_TABLES, "digest"}},
        **{key: [[*row] for row in getattr(run, key)] for key in _TABLES},
        "shown": {"step": kept, **_columns([*rows(of.parts[kept])])},
    }
    text = orjson.dumps(file, option=orjson.OPT_NON_STR_KEYS)
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(text, 9, mtime=0))
    return path


def median(seconds: Sequence[float]) -> int:
    """Return the number of the step of median length; of two, the shorter."""
    return [*seconds].index(statistics.median_low(seconds))


def _columns(found: Sequence[OperatorRow]) -> dict[str, Any]:
    """Return the rows as columns, and begins as differences: both pack better."""
    names = sorted({row.name for row in found})
    columns: dict[str, Any] = {key: [] for key in OperatorRow._fields}
    before = 0
    for row in found:
        changed = row._asdict() | {
            "name": names.index(row.name), "start": row.start - before, "end": row.end - row.start
        }  # fmt: skip
        before = row.start
        for key, value in changed.items():
            columns[key].append(value)
    return {"names": names, "rows": columns}


def read(path: Path) -> CpuRun:
    """Read a run. Raises InputError for what is none."""
    file = _file(path)
    try:
        tables = {key: tuple(of(*_exact(row)) for row in file[key]) for key, of in _TABLES.items()}
        plain = {f.name: file[f.name] for f in fields(CpuRun) if f.name not in {*tables, "digest"}}
        plain["name"] = path.name.partition(".")[0]  # files of one mode differ in their names
        lists = {key: tuple(plain[key]) for key in ("step_s", "profiled_s", "noise")}
        own = orjson.dumps({**file, "name": ""}, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(own).hexdigest()  # of its content, however it is written
        return CpuRun(**{**plain, **lists, **tables}, digest=digest)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not a whole run: {error!r} is missing or wrong") from error


def shown(path: Path) -> tuple[int, list[OperatorRow]]:
    """Return the number of the step that a file shows, and its rows."""
    file = _file(path)
    try:
        names, columns = file["shown"]["names"], file["shown"]["rows"]
        found, at = [], 0
        for values in zip(*(columns[key] for key in OperatorRow._fields), strict=True):
            row = OperatorRow(*values)
            at += row.start
            found.append(row._replace(name=names[values[2]], start=at, end=at + row.end))
        return int(file["shown"]["step"]), found
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path} shows no step: {error!r} is missing or wrong") from error


def _file(path: Path) -> dict[str, Any]:
    try:
        file = orjson.loads(content(path))
        if not isinstance(file, dict) or file.get("format") != FORMAT:
            raise TypeError("format")
        return file
    except (OSError, orjson.JSONDecodeError, TypeError) as error:
        raise InputError(f"{path} is not a file of CPU steps: {error!r}") from error


def _exact(row: Any) -> list[Any]:
    """Return shapes as tuples, and null, the mean of nothing, as nan."""
    return [
        float("nan") if value is None
        else tuple(tuple(shape) for shape in value) if isinstance(value, list)
        else value
        for value in row
    ]  # fmt: skip
