"""What ``validate recorded`` predicts: pipelines, parallel steps, or both of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from traincast.commands.parts import output, parallel_errors, recorded_errors

MOST_DRAWS = 100_000  # each draw is a simulated step


def validate(
    paths: Sequence[str],
    calibration: Sequence[Path],
    plot: Path | None,
    out: Path | None,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """Predict recordings of either kind; draw and write what is asked for.

    Returns what ``--json`` shows: that of pipelines, and a list under ``parallel``. Raises
    InputError for numbers out of range, and for files to fit to that tell nothing.
    """
    from validation.processes.compared import OURS
    from validation.processes.pipelines import sources as recorded
    from validation.processes.steps import errors as parallel

    if not 1 <= draws <= MOST_DRAWS:
        raise InputError(f"--draws {draws} must be from 1 to {MOST_DRAWS}")
    if seed < 0:
        raise InputError(f"--seed {seed} must not be negative")
    output.apart({"--plot": plot, "--out": out})
    if plot:
        output.picture(plot)
    if out:
        output.replaceable(out)
    given = [Path(path) for path in paths] or [OURS]
    steps = [path for path in given if parallel.files(path)]
    pipelines = [path for path in given if path not in steps or recorded.holds(path)]
    fitted = [path for path in calibration if parallel.files(path)]
    others = [path for path in calibration if path not in fitted]
    if plot and steps and pipelines:
        raise InputError("--plot draws one run; pipelines and parallel steps were named")
    _of_one_kind(calibration, fitted, bool(steps), bool(pipelines))
    found: dict[str, Any] = {}
    if pipelines:
        own = pipelines if paths else []  # without a path: our recordings, from our runs of 1F1B
        found = recorded_errors.validate(own, others, plot, draws, seed)
    if steps:
        skipped: list[str] = []
        found["parallel"] = parallel_errors.validate(steps, fitted, plot, draws, seed, skipped)
        found["not_predicted"] = [*found.get("not_predicted", ()), *skipped]
    if out:
        output.write_text(out, markdown(found, command(paths, calibration, draws, seed, out)))
    return found


def _of_one_kind(
    calibration: Sequence[Path], fitted: Sequence[Path], steps: bool, pipelines: bool
) -> None:
    """Raise InputError for a file to fit to that tells nothing about what is predicted."""
    for path in calibration:
        if not path.exists():
            raise InputError(f"--calibrate: no file or folder {path}")
        if path in fitted and not steps:
            raise InputError(
                f"--calibrate {path} shows parallel steps, and only pipelines are predicted"
            )
        if path not in fitted and not pipelines:
            raise InputError(
                f"--calibrate {path} shows no parallel steps, which alone are predicted"
            )


def command(
    paths: Sequence[str], calibration: Sequence[Path], draws: int, seed: int, out: Path
) -> str:
    """Return the command that made a table."""
    calibrated = [word for path in calibration for word in ("--calibrate", path.as_posix())]
    drawn = ["--draws", str(draws), "--seed", str(seed), "--out", out.as_posix()]
    return " ".join(["traincast validate recorded", *paths, *calibrated, *drawn])


def markdown(found: dict[str, Any], made: str) -> str:
    """Return the tables as Markdown, with the command that made them."""
    lines = ["# Recorded runs, predicted", "", f"Made by `{made}`.", ""]
    if found.get("runs"):
        lines += recorded_errors.markdown(found)
    if found.get("parallel"):
        lines += parallel_errors.markdown(found["parallel"])
    return "\n".join(lines)


def show_both(found: dict[str, Any]) -> None:
    """Print the tables of both kinds."""
    if found.get("runs"):
        recorded_errors.show_recorded(found)
    if found.get("parallel"):
        parallel_errors.show_parallel(found["parallel"], found["not_predicted"])
