"""Tables and pictures of predicted recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim import table as text
from traincast.commands.parts import output
from traincast.commands.parts.figures import Figures
from traincast.commands.parts.tables import say, show

_COLUMNS = (
    ("run", "id"), ("steps", "steps"), ("recorded, ms", "measured", "ms"),
    ("traced, ms", "traced_s", "ms"), ("spread", "spread", ".1%"),
    ("predicted, ms", "predicted", "ms"), ("80 % in, ms", "interval_s", "ms"),
    ("steps in", "inside", ".0%"), ("error", "error", "+.2%"),
    ("starts, max", "start_error/max", ".2%"), ("in own step", "start_error_in_step/max", ".2%"),
    ("order", "order_violations", lambda of: f"{len(of)} differ" if of else "as planned"),
)  # fmt: skip


def validate(
    paths: Sequence[Path], calibration: Sequence[Path], plot: Path | None, draws: int, seed: int
) -> dict[str, Any]:
    """Predict recordings, draw one if asked for, and return what ``--json`` shows."""
    from traincast.commands.parts.progress import progress
    from validation.processes.pipelines import errors as recorded

    with progress() as report:
        outcome = recorded.validate(paths, calibration, draws, seed, report)
        report("analysis", 0, 0)
        found = recorded.summary(outcome)
    if plot:
        output.beside(outcome.compared, recorded.both, plot)
    return found


def freeze(calibration: Sequence[Path], folder: Path) -> list[Path]:
    """Fit costs to recordings, write a file per class of machine, and return the files.

    Raises InputError where no recording is named, or the folder is not there.
    """
    from validation.processes.pipelines import costs
    from validation.processes.pipelines.sources import calibrate

    if not calibration:
        raise InputError("--freeze writes what --calibrate fits; name recordings to fit to")
    if not folder.is_dir():
        raise InputError(f"--freeze: no folder {folder}")
    command = "traincast validate recorded --calibrate " + " ".join(p.name for p in calibration)
    written = []
    for name, fitted in calibrate(calibration).items():
        costs.save(fitted, folder / f"{name}.toml", command)
        written.append(folder / f"{name}.toml")
    return written


def show_recorded(found: Figures) -> None:
    """Print a row per run and one per class of machine; for a single run also its waterfall."""
    columns = [_COLUMNS[k] for k in (0, 2, 5, 8, 9)]
    show(found["runs"], *columns, title="steps of recorded pipelines")
    if len(found["runs"]) == 1:
        (run,) = found["runs"]
        say(f"80 % of the predicted steps take {text.written(run['interval_s'], 'ms')} ms")
        causes = [*run["waterfall_s"].items(), ("recorded", run["measured"])]
        show(causes, "the step consists of", ("ms", 1, "ms"))
        _show_ranks(run)
    for sentence in _sentences(found):
        say(sentence)


def _show_ranks(run: Figures) -> None:
    def both(name: str, key: str, form: str) -> tuple[Any, ...]:
        return name, lambda pair: " / ".join(text.written(one[key], form) for one in pair)

    pairs = zip(run["recorded_ranks"], run["predicted_ranks"], strict=True)
    columns = [
        both("busy, ms", "busy_s", "ms"), both("idle, ms", "idle_s", "ms"),
        both("bubble", "bubble", ".1%"), both("overlap", "overlap", ".1%"),
    ]  # fmt: skip
    rank = ("rank", lambda pair: pair[0]["rank"])
    show(pairs, rank, *columns, title="recorded / predicted")


def _sentences(found: Figures) -> list[str]:
    out = [
        f"{of['name']}: mean error {of['mean']:.2%}, largest {of['max']:.2%} of {of['count']}; "
        f"{of['inside']:.0%} of the measured steps lie in the intervals of 80 %; "
        f"costs from {', '.join(of['sources'])}, stretched by {of['busier']:.3f} "
        f"from traced steps to all (without: mean "
        f"error {of['mean_unstretched']:.2%}, largest {of['max_unstretched']:.2%})"
        for of in found["classes"]
    ]
    if not any(run["order_violations"] for run in found["runs"]):
        out.append("the order that ran is the plan, step for step, in every run")
    out += [
        f"{run['id']}: {sentence}" for run in found["runs"] for sentence in run["order_violations"]
    ]
    out += [f"{run['id']}: {sentence}" for run in found["runs"] for sentence in run["notes"]]
    out += [f"not predicted: {sentence}" for sentence in found["not_predicted"]]
    if found["left_out"]:
        out.append(f"left out, since costs were fitted to them: {', '.join(found['left_out'])}")
    return out


def markdown(found: Figures) -> list[str]:
    """Return the tables as lines of Markdown."""
    names = found["runs"][0]["waterfall_s"]
    causes = [(name, f"waterfall_s/{name}", "ms") for name in names]
    return [
        "## Pipelines",
        "",
        "Recorded: the median of all timed steps, and their spread",
        "(standard deviation). Predicted: the median of steps with costs drawn from distributions",
        "that other recordings gave (the sources below), and the interval that holds 80 % of them.",
        "Starts: the largest |error| of any compute's start against its median over the steps that",
        "were traced call by call (some of those timed; `traced` is their median), as a share of",
        "the step. Where those traced were not as long as all, it is not the model's alone;",
        "in own step: with both starts as shares of their own step, predicted and traced.",
        "",
        "Costs are taken from traced steps and stretched, all alike, by one factor: what the timed",
        "steps of the same source took beyond their stages, over what the traced ones did. It is",
        "measured on the source alone; that it holds for other runs is assumed, and it was kept",
        "with errors of such runs in view. What they are without it stands beside them.",
        "",
        text.markdown(text.table(found["runs"], *_COLUMNS)),
        "",
        *(f"- {sentence}" for sentence in _sentences(found)),
        "",
        "What the recorded step consists of, ms; `contention` is waiting for one of the cores that",
        "all processes share, `moment` what changes with the costs that the run itself shows (a",
        "machine is not always as fast), `rest` what is not explained:",
        "",
        text.markdown(text.table(found["runs"], ("run", "id"), *causes)),
        "",
    ]
