"""Compares recorded parallel steps with predictions from costs fitted to other recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim.graph import Floats, Graph
from sim.timeline import Timeline
from traces import cpu_steps
from traces.cpu_steps import CpuRun
from validation.processes import compared
from validation.processes.compared import Progress, as_data, each
from validation.processes.predict import DRAWS
from validation.processes.steps import host
from validation.processes.steps.align import (
    causes,
    group_rows,
    message_rows,
    order_violations,
    thread_rows,
)
from validation.processes.steps.costs import Costs
from validation.processes.steps.fit import cores_of, fit
from validation.processes.steps.job import MODES, graph, mode_of
from validation.processes.steps.predict import exposed, predict


@dataclass(frozen=True, eq=False)
class Compared(compared.Compared):
    """One recorded training, predicted and recorded."""

    run: CpuRun
    path: Path
    costs: Costs

    @property
    def exposed(self) -> float:
        """Exposed communication in seconds: the median over profiled steps of the mean of ranks."""
        return float(np.median(self.exposed_steps))

    @property
    def exposed_steps(self) -> list[float]:
        """The mean of ranks for each profiled step, seconds."""
        of: dict[int, list[float]] = {}
        for row in self.run.ranks:
            of.setdefault(row.step, []).append(row.exposed_s)
        return [float(np.mean(found)) for _, found in sorted(of.items())]


def recognises(path: Path) -> bool:
    """Return whether a file is a recorded parallel training, or a step over the fake group."""
    return path.is_file() and (cpu_steps.recognises(path) or host.is_fake(path))


def files(path: Path) -> list[Path]:
    """Return the recordings at a path: itself, or those of a folder."""
    found = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
    return [file for file in found if recognises(file)]


def validate(
    paths: Sequence[Path], calibration: Sequence[Path] = (), draws: int = DRAWS, seed: int = 0,
    progress: Progress | None = None, skipped: list[str] | None = None,
) -> list[Compared]:  # fmt: skip
    """Predict each recording of DDP, FSDP2 and TP from ``calibration``, or from its neighbours.

    It is never predicted from itself, nor from another file with the same content. Neighbours are
    the recordings in its folder, which are taken to be of the same machine, and others of ``paths``
    that say they are. Raises InputError where none is left, or where what a recording needs is
    unknown; with ``skipped``, to which the sentence is added, only if that holds for all of them.
    """
    wanted = {file: run for path in paths for file, run in _runs(path).items()}
    first = {file.resolve(): file for file in reversed([*wanted])}
    wanted = {file: run for file, run in wanted.items() if first[file.resolve()] == file}
    if not wanted:
        raise InputError(
            f"{', '.join(map(str, paths))}: only recordings of {', '.join(MODES)} are predicted, "
            "but there is none"
        )

    def compare(file: Path) -> Compared:
        run = wanted[file]
        near = [path for of in calibration for path in files(of)] or _near(file, run, wanted)
        return _compare(file, run, near, draws, seed)

    return each([(run.name, file) for file, run in wanted.items()], compare, progress, skipped)


def _near(file: Path, run: CpuRun, named: Mapping[Path, CpuRun]) -> list[Path]:
    beside = files(file.parent)
    others = [path for path, one in named.items() if path not in beside]
    return [*beside, *(path for path in others if _machine(named[path]) == _machine(run) != {})]


def _machine(run: CpuRun) -> dict[str, Any]:
    """Return what a recording says about its machine, except for the load."""
    said = run.facts.get("machine")
    if not isinstance(said, dict):
        return {}
    return {key: value for key, value in said.items() if not key.startswith("load")}


def _runs(path: Path) -> dict[Path, CpuRun]:
    found = {file: _read(file) for file in files(path) if not host.is_fake(file)}
    return {file: run for file, run in found.items() if mode_of(run.mode) in MODES}


@cache
def _read(path: Path) -> CpuRun:
    return cpu_steps.read(path)


def _compare(file: Path, run: CpuRun, near: Sequence[Path], draws: int, seed: int) -> Compared:
    known: dict[str, float] = {}
    for path in near:
        known |= host.of_fake(path) if host.is_fake(path) else {}
    read = [_read(path) for path in near if not host.is_fake(path)]
    usable = [r for r in read if not _same(r, run) and mode_of(r.mode) in MODES]
    if not usable:
        raise InputError(
            f"{file} cannot be predicted from itself; put other recordings of the same machine "
            "beside it, or name them by --calibrate"
        )
    costs, mode = fit(usable, known), mode_of(run.mode)
    if cores_of(run) != costs.cores:
        raise InputError(
            f"{file} is of a machine with {cores_of(run)} cores, but costs are known for one with "
            f"{costs.cores}; --calibrate recordings of the same machine"
        )
    predicted = predict(_graph(run), costs, mode, draws, seed)
    wrong = order_violations(run, predicted.timeline)
    return Compared(run.name, run.step_s, predicted, wrong, run, file, costs)


def _same(one: CpuRun, other: CpuRun) -> bool:
    """Return whether two files are of one run: same content, or steps alike to the ns."""
    timed = (one.mode, one.step_s, one.profiled_s) == (other.mode, other.step_s, other.profiled_s)
    return timed or one.digest == other.digest


def _graph(run: CpuRun) -> Graph:
    return graph(mode_of(run.mode), run.world, run.config)


def both(of: Compared) -> dict[str, Timeline]:
    """Return the profiled step of median length, and the prediction, from second 0."""
    there = cpu_steps.timeline(of.path)
    return of.beside(there, float(there.start.min()))


def summary(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Return plain data, as ``validate recorded --json`` prints it under ``parallel``."""
    return [_run(of) for of in compared]


def _run(of: Compared) -> dict[str, Any]:
    run, predicted, steps = of.run, of.predicted, of.exposed_steps
    shown = exposed(predicted)
    usual = float(np.median(shown))
    threads = thread_rows(run, of.costs, mode_of(run.mode), predicted.timeline)
    return of.figures() | {
        "mode": run.mode,
        "sources": sorted(of.costs.sources),
        "interval_s": _interval(predicted.steps),
        "profiled": len(steps),
        "profiled_s": float(np.median(run.profiled_s)),
        "exposed": {
            "measured": of.exposed,
            "quartiles_s": np.quantile(steps, [0.25, 0.75]).tolist(),
            "predicted": usual,
            "interval_s": _interval(shown),
            "error": usual / of.exposed - 1.0 if of.exposed else None,
            "error_of_step": (usual - of.exposed) / of.measured,
        },
        "causes_s": causes(threads, of.measured, predicted.seconds, of.costs.busier),
        "threads": as_data(threads),
        "operators": as_data(group_rows(run, of.costs, predicted.timeline)),
        "collectives": as_data(message_rows(run, predicted.timeline)),
    }


def _interval(drawn: Sequence[float] | Floats) -> list[float]:
    """Return the seconds between which nine in ten draws lie."""
    return [float(of) for of in np.quantile(drawn, [0.05, 0.95])]
