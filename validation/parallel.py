"""How far off are predictions of recorded parallel steps, from costs fitted to other recordings?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from traces import cpu_steps, recorded
from traces.cpu_steps import CpuRun
from validation.cpu import host
from validation.cpu.align import Row, rows
from validation.cpu.costs import Costs
from validation.cpu.fit import fit
from validation.cpu.job import MODES, graph, mode_of
from validation.cpu.predict import DRAWS, Prediction, predict

OURS = Path(recorded.__file__).parent / "data"
Progress = Callable[[str, int, int], None]


class Compared(NamedTuple):
    """One run, predicted and recorded."""

    run: CpuRun
    path: Path
    costs: Costs
    predicted: Prediction
    rows: Sequence[Row]

    @property
    def measured(self) -> float:
        """The median of all timed steps, seconds."""
        return float(np.median(self.run.step_s))

    @property
    def error(self) -> float:
        """Signed, as a share of the measured."""
        return self.predicted.seconds / self.measured - 1.0

    @property
    def exposed(self) -> float:
        """Exposed communication: the median over profiled steps of the mean of ranks, seconds."""
        return float(np.median(self.exposed_steps))

    @property
    def exposed_steps(self) -> list[float]:
        """Of each profiled step, the mean of ranks."""
        of: dict[int, list[float]] = {}
        for row in self.run.ranks:
            of.setdefault(row.step, []).append(row.exposed_s)
        return [float(np.mean(found)) for _, found in sorted(of.items())]


def recognises(path: Path) -> bool:
    """Whether a file is a recorded parallel training, or a step over the fake process group."""
    return path.is_file() and (cpu_steps.recognises(path) or host.is_fake(path))


def files(path: Path) -> list[Path]:
    """The recordings at a path: itself, or those of a folder."""
    found = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
    return [file for file in found if recognises(file)]


def validate(
    paths: Sequence[Path], calibration: Sequence[Path] = (), draws: int = DRAWS, seed: int = 0,
    progress: Progress | None = None,
) -> list[Compared]:  # fmt: skip
    """Predict each recording of DDP, FSDP2 and TP from ``calibration``, or from the others.

    Never from itself, nor from another file with the same content. Others are recordings of the
    same machine among ``paths``, by their folder. Raises ValueError where none is left.
    """
    given = [file for path in paths for file in files(path)]
    runs = {file: cpu_steps.read(file) for file in given if not host.is_fake(file)}
    wanted = {file: run for file, run in runs.items() if mode_of(run.mode) in MODES}
    fitted = [file for path in calibration for file in files(path)]
    sources = {file: cpu_steps.read(file) for file in fitted if not host.is_fake(file)}
    known: dict[str, float] = {}
    for file in [*given, *fitted]:
        known |= host.of_fake(file) if host.is_fake(file) else {}
    out = []
    for number, (file, run) in enumerate(wanted.items()):
        if progress:
            progress(run.name, number, len(wanted))
        others = sources or {f: r for f, r in wanted.items() if f.parent == file.parent}
        out.append(_compare(file, run, others, known, draws, seed))
    return out


def _compare(
    file: Path, run: CpuRun, sources: Mapping[Path, CpuRun], known: Mapping[str, float],
    draws: int, seed: int,
) -> Compared:  # fmt: skip
    usable = [r for r in sources.values() if r.digest != run.digest and mode_of(r.mode) in MODES]
    if not usable:
        raise ValueError(
            f"{file} cannot be predicted from itself; name other recordings of the same machine, "
            "beside it or by --calibrate"
        )
    costs = fit(usable, known)
    mode = mode_of(run.mode)
    predicted = predict(graph(mode, run.world, run.config), costs, mode, draws, seed)
    return Compared(run, file, costs, predicted, rows(run, predicted.timeline))


def summary(compared: Sequence[Compared]) -> list[dict[str, Any]]:
    """Plain data, as ``validate recorded --json`` prints it; seconds and shares."""
    return [_run(of) for of in compared]


def _run(of: Compared) -> dict[str, Any]:
    run, predicted = of.run, of.predicted
    steps = of.exposed_steps
    return {
        "id": of.path.name.split(".")[0].removesuffix("_summary"),
        "mode": run.mode,
        "sources": sorted(of.costs.sources),
        "steps": len(run.step_s),
        "spread": float(np.std(run.step_s) / np.mean(run.step_s)),
        "measured": of.measured,
        "predicted": predicted.seconds,
        "interval_s": [predicted.low, predicted.high],
        "error": of.error,
        "profiled": len(steps),
        "profiled_s": float(np.median(run.profiled_s)),
        "exposed": {
            "measured": of.exposed,
            "quartiles_s": np.quantile(steps, [0.25, 0.75]).tolist(),
            "predicted": predicted.exposed,
            "interval_s": [predicted.exposed_low, predicted.exposed_high],
            "error": predicted.exposed / of.exposed - 1.0 if of.exposed else None,
            "error_of_step": (predicted.exposed - of.exposed) / of.measured,
        },
        "parts": [row._asdict() for row in of.rows],
    }
