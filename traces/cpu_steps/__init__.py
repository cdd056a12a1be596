"""Steps of parallel trainings on CPU processes: their operators, collectives and waits.

:mod:`~traces.cpu_steps.trace` reads one rank's profiler trace, :mod:`~traces.cpu_steps.steps` cuts
steps and tells waiting from working, :mod:`~traces.cpu_steps.measure` adds up operators and
collectives, :mod:`~traces.cpu_steps.distilled` keeps all that in one small file,
:mod:`~traces.cpu_steps.whole` says whether it can be.
"""

from __future__ import annotations

from pathlib import Path

from schedules.input_error import InputError
from sim.timeline import Timeline
from traces.cpu_steps import distilled, source
from traces.cpu_steps.distilled import median
from traces.cpu_steps.rows import rows
from traces.cpu_steps.rows import timeline as _timeline
from traces.cpu_steps.run import CpuRun, Leaf, Moved, RankStep
from traces.cpu_steps.whole import checked

__all__ = ["CpuRun", "Leaf", "Moved", "RankStep", "read", "recognises", "timeline"]


def recognises(path: Path) -> bool:
    """Return whether a file is a run: ``MODE.json.gz``, or ``MODE_summary.json`` with traces."""
    return distilled.recognises(path) or source.recognises(path)


def read(path: Path) -> CpuRun:
    """Read a run from either. Raises InputError for what is none."""
    run = source.read(path).run if source.recognises(path) else distilled.read(path)
    return checked(run, path)


def timeline(path: Path, step: int | None = None) -> Timeline:
    """Return one profiled step of all ranks; without a number, the one of median length.

    Raises InputError for a step that is not there; our own file has only the one of median length.
    """
    if source.recognises(path):
        found = source.read(path)
        wanted = median(found.run.profiled_s) if step is None else step
        if not 0 <= wanted < len(found.parts):
            raise InputError(f"{path} has steps 0 to {len(found.parts) - 1}, not {wanted}")
        return _timeline([*rows(found.parts[wanted])], found.run)
    kept, some = distilled.shown(path)
    if step not in (None, kept):
        raise InputError(f"{path} shows step {kept}, not {step}")
    return _timeline(some, distilled.read(path))
