"""Compares recorded pipelines with predictions from costs fitted to other recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim import units
from sim.timeline import Timeline
from traces import reading
from traces.recorded.run import RecordedRun
from traces.recording import Selection
from validation.processes import compared
from validation.processes.compared import OURS, Progress, as_data, each
from validation.processes.pipelines import sources
from validation.processes.pipelines.align import (
    AlignedCompute,
    align,
    duration_errors,
    errors_in_step,
    predicted_ranks,
    recorded_ranks,
    start_errors,
)
from validation.processes.pipelines.calls import Compute
from validation.processes.pipelines.costs import Costs
from validation.processes.pipelines.halves import completed
from validation.processes.pipelines.predict import interval, predict, timeline
from validation.processes.pipelines.waterfall import waterfall
from validation.processes.pipelines.workload import Workload, load, model, plan, violations
from validation.processes.predict import DRAWS


@dataclass(frozen=True, eq=False)
class Compared(compared.Compared):
    """One recorded pipeline, predicted and recorded."""

    run: RecordedRun
    kind: str
    interval: tuple[float, float]  # of 80 % of the steps of another sitting
    rows: Sequence[AlignedCompute]
    causes: Mapping[str, float]
    unstretched: float  # seconds predicted without the factor ``Costs.busier``
    notes: Sequence[str]  # what was assumed

    @property
    def inside(self) -> float:
        """The share of the measured steps that lies in the interval of 80 %."""
        low, high = self.interval
        return sum(low <= one <= high for one in self.timed) / len(self.timed)


class Outcome(NamedTuple):
    """All runs, and those left out since costs were fitted to them."""

    compared: Sequence[Compared]
    costs: Mapping[str, Costs]
    left_out: Sequence[str]
    skipped: Sequence[str] = ()  # why others of a folder were not predicted


def validate(
    paths: Sequence[Path], calibration: Sequence[Path] = (), draws: int = DRAWS, seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """Predict recorded runs, by frozen costs or by those that ``calibration`` shows.

    Without paths or ``calibration``, our recordings are predicted, each class by its own run of
    1F1B. Raises InputError for what is no recording, for one that cannot be predicted, and for one
    to which the costs were fitted, unless others can be predicted.
    """
    calibration = calibration or ([] if paths else sorted(OURS.glob("*one_f_one_b_*")))
    fitted = sources.costs(calibration)
    runs, left_out = sources.others(paths or [OURS], fitted)
    skipped = list[str]()
    some = each(
        [(run.name, run) for run in runs], lambda run: _compare(run, fitted, draws, seed),
        progress, skipped,
    )  # fmt: skip
    return Outcome(some, fitted, left_out, skipped)


def _compare(run: RecordedRun, fitted: Mapping[str, Costs], draws: int, seed: int) -> Compared:
    what, name = load(run), sources.kind(run)
    costs, notes = _costs(run, what, fitted)
    predicted = predict(what, costs, draws, seed)
    less = timeline(what, replace(costs, busier=1.0)).end.max() - predicted.timeline.end.max()
    return Compared(
        run.name, run.seconds, predicted, violations(run), run, name,
        interval(what, costs, predicted, seed), align(run, predicted),
        waterfall(run, plan(run), what, costs, predicted), predicted.seconds + float(less), notes,
    )  # fmt: skip


def _costs(
    run: RecordedRun, what: Workload, fitted: Mapping[str, Costs]
) -> tuple[Costs, list[str]]:
    """Return the costs of a run's class, and what is assumed of them.

    Raises InputError where they do not say what the run does.
    """
    name = sources.kind(run)
    if name not in fitted:
        raise InputError(f"{run.path} is of class {name}, for which --calibrate names no recording")
    if fitted[name].model != model(run):
        raise InputError(
            f"{run.path} has stages of {model(run)}, but costs are known for {fitted[name].model}; "
            "--calibrate a recording of such stages"
        )
    costs, halved = completed(fitted[name])
    used = {call.step.kind for calls in what.program for call in calls if isinstance(call, Compute)}
    if lacking := sorted(used - costs.spreads.keys()) if costs.model else []:
        raise InputError(
            f"{run.path} runs {', '.join(lacking)}, which the costs of {name} do not have; "
            "--calibrate a recording that has them"
        )
    notes = [halved] * bool(halved and used & {"B", "I", "W"} - fitted[name].spreads.keys())
    return costs, [*notes, *beyond(run.message_bytes(), costs)]


def both(of: Compared) -> dict[str, Timeline]:
    """Return the traced step of median length, and the prediction, from second 0."""
    order = np.argsort([step.seconds for step in of.run.steps])
    number = int(order[len(order) // 2])
    selection = Selection(step=of.run.numbers[number])
    recorded = reading.read([of.run.path], selection).timeline
    return of.beside(recorded, of.run.steps[number].begin)


def beyond(size: float, costs: Costs) -> list[str]:
    """Return a warning about messages that are larger than any whose cost is known."""
    known = max([costs.bytes, *(row.bytes for row in costs.sizes)])
    if size <= known:
        return []
    how = "extrapolated linearly" if len(costs.sizes) > 1 else "taken to cost as much"
    return [
        f"its messages of {units.size(size)} are larger than those of up to {units.size(known)} "
        f"that were measured, and are {how}: starts and step are uncertain"
    ]


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return plain data, as ``validate recorded --json`` prints it; seconds and shares."""
    kinds = sorted({of.kind for of in outcome.compared})
    return {
        "classes": [_total(name, outcome) for name in kinds],
        "left_out": list(outcome.left_out),
        "not_predicted": list(outcome.skipped),
        "runs": [_run(of) for of in outcome.compared],
    }


def _total(name: str, outcome: Outcome) -> dict[str, Any]:
    ours = [of for of in outcome.compared if of.kind == name]
    errors = [abs(of.error) for of in ours]
    unstretched = [abs(of.unstretched / of.measured - 1.0) for of in ours]
    return {
        "name": name,
        "busier": outcome.costs[name].busier,
        "mean_unstretched": fsum(unstretched) / len(unstretched),
        "max_unstretched": max(unstretched),
        "sources": sorted(outcome.costs[name].sources),
        "mean": fsum(errors) / len(errors),
        "max": max(errors),
        "inside": sum(of.inside for of in ours) / len(ours),
        "count": len(errors),
    }


def _run(of: Compared) -> dict[str, Any]:
    run, step = of.run, of.measured
    traced = float(np.median([one.seconds for one in run.steps]))
    in_step = errors_in_step(of.rows, traced, of.predicted.seconds)
    return of.figures() | {
        "class": of.kind,
        "inside": of.inside,
        "interval_s": [*of.interval],
        "mean_costs_s": float(of.predicted.timeline.end.max()),
        "traced_s": traced,
        "start_error": start_errors(of.rows, step)._asdict(),
        "start_error_in_step": in_step._asdict(),
        "duration_error": duration_errors(of.rows, step)._asdict(),
        "recorded_ranks": as_data(recorded_ranks(run)),
        "predicted_ranks": as_data(predicted_ranks(of.predicted)),
        "notes": list(of.notes),
        "waterfall_s": dict(of.causes),
    }
