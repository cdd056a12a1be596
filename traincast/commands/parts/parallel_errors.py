"""Tables and pictures of predicted parallel steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from traincast.commands.parts import output
from traincast.commands.parts.figures import Figures
from traincast.commands.parts.tables import say, show

if TYPE_CHECKING:
    from validation.processes.steps.errors import Compared

_COLUMNS = (
    "run", "training", "steps", "recorded, ms", "spread", "predicted, ms", "5 to 95 %, ms",
    "error", "exposed, ms", "quartiles", "predicted, ms", "5 to 95 %, ms", "error", "of the step",
)  # fmt: skip
_CAUSES = ("predicted", "cost model", "contention", "launch gap", "latency", "noise", "rest")


UNSTEADY = 0.15  # spread of steps above which a recording is called disturbed


def validate(
    paths: Sequence[Path],
    calibration: Sequence[Path],
    plot: Path | None,
    draws: int,
    seed: int,
    skipped: list[str],
) -> list[dict[str, Any]]:
    """Predict recordings, draw one if asked for, and return what ``--json`` shows.

    A sentence for each recording that cannot be predicted is added to ``skipped``, if others can.
    """
    from traincast.commands.parts.progress import progress
    from validation.processes.steps import errors as parallel

    with progress() as report:
        compared = parallel.validate(paths, calibration, draws, seed, report, skipped)
        report("analysis", 0, 0)
        found = parallel.summary(compared)
    if plot:
        _draw(compared, plot)
    return found


def _draw(compared: Sequence[Compared], plot: Path) -> None:
    from sim import plots
    from validation.processes.steps.errors import both

    if len(compared) != 1:
        raise InputError(f"--plot draws one run beside its prediction; {len(compared)} were named")
    (of,) = compared
    title = (
        f"{of.run.name}: recorded {of.measured * 1e3:.1f} ms, predicted {of.error:+.1%}"
        " (drawn: a profiled step, and one of mean costs)"
    )
    drawn = plots.timelines(both(of), title=title)
    with output.replacing(plot) as temporary:
        plots.save(drawn, temporary)


def show_parallel(found: Sequence[Figures], skipped: Sequence[str] = ()) -> None:
    """Print a row per run; for a single run also what its step consists of."""
    rows = [
        (run["id"], _ms(run["measured"]), f"{run['error']:+.1%}", _ms(run["exposed"]["measured"]),
         _ms(run["exposed"]["predicted"]), f"{run['exposed']['error_of_step']:+.1%}")
        for run in found
    ]  # fmt: skip
    names = ("run", "recorded, ms", "predicted", "exposed, ms", "predicted, ms", "of the step")
    show(rows, *names, title="steps of recorded parallel trainings")
    if len(found) == 1:
        (run,) = found
        low, high = map(_ms, run["interval_s"])
        say(f"90 % of the predicted steps take {low} to {high} ms; costs from {_sources(run)}")
        show(_cause_rows(run), "from the prediction to the recorded step", "ms")
        for title in ("threads", "operators", "collectives"):
            cells = [(r["name"], _cell(r, "recorded"), _cell(r, "predicted")) for r in run[title]]
            show(cells, f"{title}, mean costs", "recorded", "predicted")
    for run in found:
        for sentence in run["order_violations"]:
            say(f"{run['id']}: {sentence}")
        if run["spread"] > UNSTEADY:
            say(f"{run['id']}: steps spread {run['spread']:.0%}, so something else ran as well")
    for sentence in skipped:
        say(f"not predicted: {sentence}")


def _cause_rows(run: Figures) -> list[tuple[str, str]]:
    return [(name, _ms(run["causes_s"][name])) for name in _CAUSES] + [
        ("recorded", _ms(run["measured"]))
    ]


def _cell(row: Figures, key: str) -> str:
    name, value = row["name"], row[key]
    if name.endswith("count"):
        return f"{value:.0f}"
    return f"{value / 1e6:.2f} MB" if name.endswith("bytes") else f"{_ms(value)} ms"


def _sources(run: Figures) -> str:
    return ", ".join(run["sources"])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def _cells(run: Figures) -> tuple[str, ...]:
    exposed = run["exposed"]
    error = exposed["error"]
    return (
        run["id"], run["mode"], f"{run['steps']} + {run['profiled']}", _ms(run["measured"]),
        f"{run['spread']:.1%}", _ms(run["predicted"]), _span(run["interval_s"]),
        f"{run['error']:+.1%}", _ms(exposed["measured"]), _span(exposed["quartiles_s"]),
        _ms(exposed["predicted"]), _span(exposed["interval_s"]),
        "" if error is None else f"{error:+.0%}", f"{exposed['error_of_step']:+.1%}",
    )  # fmt: skip


def _span(seconds: Sequence[float]) -> str:
    return " to ".join(map(_ms, seconds))


def markdown(found: Sequence[Figures]) -> list[str]:
    """Return the tables as lines of Markdown."""
    from traincast.commands.parts.recorded_errors import table

    errors = [abs(run["error"]) for run in found]
    of_step = [abs(run["exposed"]["error_of_step"]) for run in found]
    return [
        "## Parallel steps",
        "",
        "DDP, FSDP2 and TP on CPU processes over gloo: this project's own graph of each, on",
        "processes that share the cores, with costs fitted to the other recordings in the run's",
        "folder and never to itself. Steps: timed + profiled; the recorded step is the median of",
        "those timed. Exposed communication: what threads wait for it, of the profiled steps the",
        "median and quartiles, ranks' mean; of the predicted, of draws.",
        "",
        *table(_COLUMNS, [_cells(run) for run in found]),
        "",
        f"- steps: mean error {fsum(errors) / len(errors):.1%}, largest {max(errors):.1%} of "
        f"{len(errors)}; exposed communication: mean {fsum(of_step) / len(of_step):.1%} of the "
        f"step, largest {max(of_step):.1%}",
        *(f"- {run['id']}: {sentence}" for run in found for sentence in run["order_violations"]),
        "",
        "From the prediction to the recorded step, ms: operators alone (cost model), operators",
        "slowed by communication, Python between them, waiting for communication, the timed steps",
        "against the profiled ones, and what is left:",
        "",
        *table(
            ("run", *_CAUSES, "recorded"),
            [(run["id"], *(cells for _, cells in _cause_rows(run))) for run in found],
        ),
        "",
    ]
