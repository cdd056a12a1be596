"""Tables and pictures of predicted parallel steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import fsum
from pathlib import Path
from typing import Any

from sim import table as text
from traincast.commands.parts import output
from traincast.commands.parts.figures import Figures
from traincast.commands.parts.tables import say, show

_COLUMNS = (
    ("run", "id"), ("training", "mode"),
    ("steps", lambda run: f"{run['steps']} + {run['profiled']}"),
    ("recorded, ms", "measured", "ms"), ("spread", "spread", ".1%"),
    ("predicted, ms", "predicted", "ms"), ("5 to 95 %, ms", "interval_s", "ms"),
    ("error", "error", "+.1%"), ("exposed, ms", "exposed/measured", "ms"),
    ("quartiles", "exposed/quartiles_s", "ms"), ("predicted, ms", "exposed/predicted", "ms"),
    ("5 to 95 %, ms", "exposed/interval_s", "ms"), ("error", "exposed/error", "+.0%"),
    ("of the step", "exposed/error_of_step", "+.1%"),
)  # fmt: skip
_CAUSES = ("predicted", "cost model", "contention", "launch gap", "latency", "noise", "rest")
_CAUSE_COLUMNS = [(name, f"causes_s/{name}", "ms") for name in _CAUSES]


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
        more = " (drawn: a profiled step, and one of mean costs)"
        output.beside(compared, parallel.both, plot, more)
    return found


def show_parallel(found: Sequence[Figures], skipped: Sequence[str] = ()) -> None:
    """Print a row per run; for a single run also what its step consists of."""
    columns = [_COLUMNS[k] for k in (0, 3, 8, 10, 13)]
    columns.insert(2, ("predicted", "error", "+.1%"))
    show(found, *columns, title="steps of recorded parallel trainings")
    if len(found) == 1:
        (run,) = found
        ends, sources = text.written(run["interval_s"], "ms"), run["sources"]
        say(f"90 % of the predicted steps take {ends} ms; costs from {', '.join(sources)}")
        rows = [*((name, run["causes_s"][name]) for name in _CAUSES), ("recorded", run["measured"])]
        show(rows, "from the prediction to the recorded step", ("ms", 1, "ms"))
        for title in ("threads", "operators", "collectives"):
            sides = [(side, partial(_cell, side)) for side in ("recorded", "predicted")]
            show(run[title], (f"{title}, mean costs", "name"), *sides)
    for run in found:
        for sentence in run["order_violations"]:
            say(f"{run['id']}: {sentence}")
        if run["spread"] > UNSTEADY:
            say(f"{run['id']}: steps spread {run['spread']:.0%}, so something else ran as well")
    for sentence in skipped:
        say(f"not predicted: {sentence}")


def _cell(key: str, row: Figures) -> str:
    name, value = row["name"], row[key]
    if name.endswith("count"):
        return f"{value:.0f}"
    return f"{value / 1e6:.2f} MB" if name.endswith("bytes") else f"{value * 1e3:.1f} ms"


def markdown(found: Sequence[Figures]) -> list[str]:
    """Return the tables as lines of Markdown."""
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
        text.markdown(text.table(found, *_COLUMNS)),
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
        text.markdown(
            text.table(found, _COLUMNS[0], *_CAUSE_COLUMNS, ("recorded", *_COLUMNS[3][1:]))
        ),
        "",
    ]
