"""Finds recorded pipelines in files and folders, and fits costs to them by class."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from schedules.input_error import InputError
from traces.recorded import reader as recorded
from traces.recorded import run as recorded_run
from traces.recorded.run import RecordedRun
from validation.processes.pipelines import costs as frozen
from validation.processes.pipelines.costs import Costs, Size
from validation.processes.pipelines.measure import fit


def holds(path: Path) -> bool:
    """Return whether a folder holds a recorded pipeline, or a path is not there at all."""
    return not path.exists() or any(map(recorded.recognises, _files(path)))


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.json*")) if path.is_dir() else [path]


def kind(run: RecordedRun) -> str:
    """Return the class: timed stages with or without real-time priority, or real layers."""
    if run.settings.get("mode") != "virtual":
        return "real"
    return "fifo" if run.settings.get("rt") else "plain"


def costs(calibration: Sequence[Path]) -> dict[str, Costs]:
    """Return costs by class: those that ``calibration`` shows, and frozen ones of other classes."""
    kept = {name: frozen.load(frozen.FOLDER / f"{name}.toml") for name in frozen.names()}
    return kept | calibrate(calibration, {name: of.sizes for name, of in kept.items()})


def others(
    paths: Sequence[Path], fitted: Mapping[str, Costs]
) -> tuple[list[RecordedRun], list[str]]:
    """Return the runs at some paths, and names of those of folders to which costs were fitted.

    Raises InputError for a file to which they were fitted, and where there is no other run.
    """
    known = {digest for of in fitted.values() for digest in of.sources.values()}
    found = [(path, run) for path in paths for run in runs(path)]
    for path, run in found:
        if run.digest in known and not path.is_dir():
            raise InputError(f"costs were fitted to {path}, so it cannot show how good they are")
    left_out = [run.name for _, run in found if run.digest in known]
    wanted = [run for _, run in found if run.digest not in known]
    if not wanted:
        raise InputError(f"costs were fitted to all recordings there are: {', '.join(left_out)}")
    return wanted, left_out


def calibrate(
    paths: Sequence[Path], usual: Mapping[str, Sequence[Size]] | None = None
) -> dict[str, Costs]:
    """Fit costs by class, to recordings and perhaps one sweep of message sizes.

    Without a sweep, ``usual`` has the further seconds of larger messages, by class.

    Raises InputError for a file that is neither, and for a sweep without recordings.
    """
    sweeps = [path for path in paths if path.is_file() and not recorded.recognises(path)]
    runs = [recorded_run.read(path) for path in paths if path not in sweeps]
    if len(sweeps) > 1 or (sweeps and not runs):
        raise InputError(
            f"costs are fitted to recordings and at most one sweep of messages: {sweeps[-1]}"
        )
    rows = sizes(sweeps[0]) if sweeps else ()
    kinds = sorted({kind(run) for run in runs})
    more = {name: rows or (usual or {}).get(name, ()) for name in kinds}
    return {
        name: fit([run for run in runs if kind(run) == name], name, more[name]) for name in kinds
    }


def runs(path: Path) -> list[RecordedRun]:
    """Read the recorded pipelines at a path. Raises InputError where there is none."""
    if not path.exists():
        raise InputError(f"no file or folder {path}")
    found = [file for file in _files(path) if recorded.recognises(file)]
    if not found:
        raise InputError(f"{path} holds no recorded pipeline; traincast record makes one")
    return [recorded_run.read(file) for file in found]


def sizes(path: Path) -> list[Size]:
    """Return how much longer larger messages take, from a file of a p2p sweep.

    Raises InputError for a file that is none.
    """
    try:
        rows = sorted(json.loads(path.read_text(encoding="utf-8")), key=lambda row: row["bytes"])
        keys = ("oneway_preposted_us", "isend_post_us")
        # no larger message is faster: small differences among small ones are noise
        wire, copy = (np.maximum.accumulate([float(row[key]) for row in rows]) for key in keys)
        return [
            Size(float(row["bytes"]), float(w - wire[0]) / 1e6, float(c - copy[0]) / 1e6)
            for row, w, c in zip(rows, wire, copy, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path} holds no sweep of messages: {error!r}") from error
