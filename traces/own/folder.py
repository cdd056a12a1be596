"""Writes the files of a run, as ``traincast run --out`` does."""

from __future__ import annotations

import copy
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim import plots
from sim import report as pages
from sim.files import locks, replaceable, staging, writable, write_text
from sim.memory.curve import curves
from sim.memory.runtime import besides
from sim.recipe import recipe_file
from sim.runs.run import Report, Result
from traces.chrome import Written
from traces.hta import files as hta
from traces.own import perfetto
from traces.own.priced_machine import PricedMachine

Window = tuple[float, float]
NAMES = (
    "summary.json", "recipe.toml", "report.html", "timeline.json.gz", "traces", "timeline.png",
    "memory.png",
)  # fmt: skip
_RANK_FILE = re.compile(r"rank[0-9]+\.json\.gz")


class Files(NamedTuple):
    """What was written."""

    paths: tuple[Path, ...]
    traced: Written  # ranks and ops in the trace files


def write(
    result: Result,
    out: str | Path,
    ranks: Sequence[int] | None = None,
    window: Window | None = None,
    report: Report = lambda *_: None,
) -> Files:
    """Write summary, page, Perfetto file, a file per rank, pictures and the complete recipe.

    ``ranks`` and ``window`` (seconds) select what the traces hold; without ``ranks`` a trace of
    over 300,000 ops holds the first, middle and last pipeline stage. The same result gives the same
    bytes: how long the simulation took is left out of the summary.

    Everything is written beside its place and moved at the end, so a failure changes nothing.
    Files of an earlier run are replaced, and stale rank files removed; all else in the folder
    stays. Raises InputError for a rank that was not simulated, a window after the step's end and a
    folder that cannot be written to.
    """
    out = Path(out)
    check(out)
    seconds = result.timeline.seconds
    if window is not None and window[0] >= seconds:
        raise InputError(
            f"the window {window[0]:g}:{window[1]:g} begins after the step has ended, "
            f"at {seconds:.6g} s; give one that begins before"
        )
    with staging(out) as folder:
        traced = _traces(result, folder, ranks, window, report)
        report("pictures", 0, 0)
        _pictures(result, folder, ranks, window)
        _texts(result, folder)
        report("report.html", 0, 0)
        _page(result, folder)
        out.mkdir(parents=True, exist_ok=True)
        with locks.turn(out), locks.uninterrupted():
            _move(folder, out)
    return Files(tuple(out / name for name in NAMES), traced)


def check(out: Path) -> None:
    """Raise InputError when :func:`write` could not write there; this makes no file."""
    writable(out)
    for name in NAMES:
        if name != "traces":
            replaceable(out / name)
    traces = writable(out / "traces")
    for path in _rank_files(traces):
        replaceable(path)


def _traces(
    result: Result, folder: Path, ranks: Sequence[int] | None, window: Window | None, report: Report
) -> Written:
    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: report(what, done, of)

    path, timeline = folder / "timeline.json.gz", result.timeline
    healthy = (result.cluster.healthy or result.cluster).capacity
    traced = perfetto.write(
        timeline,
        path,
        ranks=ranks,
        window=window,
        progress=progress(path.name),
        of=PricedMachine(result.machine, healthy),
    )
    (folder / "traces").mkdir()
    hta.write_rank_files(
        timeline,
        folder / "traces",
        ranks=ranks,
        window=window,
        progress=progress("traces"),
        machine=result.machine,
    )
    return traced


def _pictures(
    result: Result, folder: Path, ranks: Sequence[int] | None, window: Window | None
) -> None:
    timeline, capacity = result.timeline, result.cluster.gpu.memory
    title = _title(result).replace("$", r"\$")  # no formula to matplotlib
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph", UserWarning
        )  # a name's letter is not in the font
        drawn = plots.timeline(timeline, ranks=ranks, window=window, title=title)
        plots.save(drawn, folder / "timeline.png")
        drawn = plots.memory(
            curves(timeline),
            capacity=capacity,
            besides=besides(result.summary["memory"]),
            title=title,
        )
        plots.save(drawn, folder / "memory.png")


def _title(result: Result) -> str:
    """Return the model, the schedule of its pipeline if there is one, and how long a step is."""
    recipe = result.recipe
    schedule = Path(recipe.schedule.name).stem.replace("one_f_one_b", "1F1B")
    name = f"{recipe.model.name}{f', {schedule}' if recipe.parallelism.pp > 1 else ''}"
    return f"{name}: {_length(result.summary)}"


def _length(summary: Mapping[str, Any]) -> str:
    """Return how long a step is, and how many there are, in words.

    >>> _length({"step_time_s": 0.54321})
    'one step of 0.5432 s'
    >>> _length({"step_time_s": 0.54321, "steps": {"ends_s": [0.6, 1.1, 1.7]}})
    '3 steps, 0.5432 s each in the steady state'
    """
    seconds = f"{summary['step_time_s']:.4g} s"
    if "steps" not in summary:
        return f"one step of {seconds}"
    return f"{len(summary['steps']['ends_s'])} steps, {seconds} each in the steady state"


def _texts(result: Result, folder: Path) -> None:
    summary = copy.deepcopy(result.summary)
    summary["simulation"]["wall_s"] = None
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    write_text(folder / "recipe.toml", recipe_file.dump(result.recipe))


def _page(result: Result, folder: Path) -> None:
    capacity = result.cluster.gpu.memory
    text = pages.of_run(_title(result), result.timeline, result.summary, capacity)
    write_text(folder / "report.html", text)


def _move(folder: Path, out: Path) -> None:
    """Put all files in their places, one by one; no other file is touched."""
    (out / "traces").mkdir(exist_ok=True)
    fresh = {path.name for path in (folder / "traces").iterdir()}
    for name in sorted(fresh):
        (folder / "traces" / name).replace(out / "traces" / name)
    for path in _rank_files(out / "traces"):
        if path.name not in fresh:
            path.unlink()
    for name in NAMES:
        if name != "traces":
            (folder / name).replace(out / name)


def _rank_files(traces: Path) -> list[Path]:
    names = os.listdir(traces) if traces.is_dir() else []  # noqa: PTH208  names alone
    return [traces / name for name in names if _RANK_FILE.fullmatch(name)]
