"""Tables and pictures of predicted recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from traincast.commands.parts import output
from traincast.commands.parts.figures import Figures
from traincast.commands.parts.tables import say, show

if TYPE_CHECKING:
    from validation.processes.pipelines.errors import Outcome

_COLUMNS = (
    "run", "steps", "recorded, ms", "traced, ms", "spread", "predicted, ms", "80 % in, ms",
    "steps in", "error", "starts, max", "in own step", "order",
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
        _draw(outcome, plot)
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


def _draw(outcome: Outcome, plot: Path) -> None:
    from sim import plots
    from validation.processes.pipelines.errors import both

    if len(outcome.compared) != 1:
        raise InputError(
            f"--plot draws one run beside its prediction; {len(outcome.compared)} were named"
        )
    (of,) = outcome.compared
    title = f"{of.run.name}: recorded {of.measured * 1e3:.1f} ms, predicted {of.error:+.1%}"
    drawn = plots.timelines(both(of), title=title)
    with output.replacing(plot) as temporary:
        plots.save(drawn, temporary)


def show_recorded(found: Figures) -> None:
    """Print a row per run and one per class of machine; for a single run also its waterfall."""
    shown = (0, 2, 5, 8, 9)
    rows = (tuple(row[k] for k in shown) for row in map(_cells, found["runs"]))
    names = [_COLUMNS[k] for k in shown]
    show(rows, *names, title="steps of recorded pipelines")
    if len(found["runs"]) == 1:
        (run,) = found["runs"]
        low, high = map(_ms, run["interval_s"])
        say(f"80 % of the predicted steps take {low} to {high} ms")
        causes = [(name, _ms(seconds)) for name, seconds in run["waterfall_s"].items()]
        show([*causes, ("recorded", _ms(run["measured"]))], "the step consists of", "ms")
        _show_ranks(run)
    for sentence in _sentences(found):
        say(sentence)


def _show_ranks(run: Figures) -> None:
    pairs = zip(run["recorded_ranks"], run["predicted_ranks"], strict=True)
    rows = [
        (
            str(one["rank"]),
            *(f"{_ms(one[key])} / {_ms(two[key])}" for key in ("busy_s", "idle_s")),
            *(f"{one[key]:.1%} / {two[key]:.1%}" for key in ("bubble", "overlap")),
        )
        for one, two in pairs
    ]
    show(rows, "rank", "busy, ms", "idle, ms", "bubble", "overlap", title="recorded / predicted")


def _cells(run: Figures) -> tuple[str, ...]:
    low, high = run["interval_s"]
    wrong = len(run["order_violations"])
    return (
        run["id"],
        str(run["steps"]),
        _ms(run["measured"]),
        _ms(run["traced_s"]),
        f"{run['spread']:.1%}",
        _ms(run["predicted"]),
        f"{_ms(low)} to {_ms(high)}",
        f"{run['inside']:.0%}",
        f"{run['error']:+.2%}",
        f"{run['start_error']['max']:.2%}",
        f"{run['start_error_in_step']['max']:.2%}",
        f"{wrong} differ" if wrong else "as planned",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


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
    causes = list(found["runs"][0]["waterfall_s"])
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
        *table(_COLUMNS, [_cells(run) for run in found["runs"]]),
        "",
        *(f"- {sentence}" for sentence in _sentences(found)),
        "",
        "What the recorded step consists of, ms; `contention` is waiting for one of the cores that",
        "all processes share, `moment` what changes with the costs that the run itself shows (a",
        "machine is not always as fast), `rest` what is not explained:",
        "",
        *table(
            ("run", *causes),
            [(run["id"], *(_ms(run["waterfall_s"][of]) for of in causes)) for run in found["runs"]],
        ),
        "",
    ]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; every column but the first is aligned right."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
