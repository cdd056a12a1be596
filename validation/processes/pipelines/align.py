"""Compares a recorded run with its prediction: per compute, per rank, and on one axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.analysis.shares import Shares, shares
from traces import reading
from traces.recorded.run import COMPUTE, RecordedRun
from validation.processes.pipelines.predict import computes, starts
from validation.processes.predict import Prediction


class AlignedCompute(NamedTuple):
    """One compute: medians over the traced steps, seconds from the step's begin."""

    name: str
    rank: int
    recorded_start: float
    predicted_start: float
    recorded_seconds: float
    predicted_seconds: float


class Errors(NamedTuple):
    """How far off predictions are: the median, 95th percentile and largest |error|, in steps."""

    median: float
    p95: float
    max: float


class RankShares(NamedTuple):
    """One rank: of the step, which share it does not compute; of its transfers, which is hidden."""

    rank: int
    busy_s: float
    idle_s: float
    bubble: float
    overlap: float


def align(run: RecordedRun, predicted: Prediction) -> list[AlignedCompute]:
    """Return every compute of the run beside its prediction. Raises InputError where one lacks."""
    begins: dict[tuple[int, str], list[float]] = {}
    lasts: dict[tuple[int, str], list[float]] = {}
    for step in run.steps:
        for rank, calls in enumerate(step.calls):
            for call in calls:
                if call.kind == COMPUTE:
                    begins.setdefault((rank, call.name), []).append(call.start - step.begin)
                    lasts.setdefault((rank, call.name), []).append(call.end - call.start)
    mean = predicted.timeline
    seconds, starting = computes(mean, mean.end - mean.start), computes(mean, starts(predicted))
    if other := {name for _, name in begins} ^ seconds.keys():
        raise InputError(f"{run.path}: {min(other)} was either only recorded or only predicted")
    return [
        AlignedCompute(
            name, rank, float(np.median(found)), starting[name],
            float(np.median(lasts[rank, name])), seconds[name],
        )
        for (rank, name), found in sorted(begins.items(), key=lambda item: item[1][0])
    ]  # fmt: skip


def start_errors(rows: Iterable[AlignedCompute], step: float) -> Errors:
    """Return the errors of the starts."""
    return _errors([row.predicted_start - row.recorded_start for row in rows], step)


def errors_in_step(rows: Iterable[AlignedCompute], recorded: float, predicted: float) -> Errors:
    """Return the errors of starts as shares of their own step, which takes so many seconds."""
    shares = [row.predicted_start / predicted - row.recorded_start / recorded for row in rows]
    return _errors(shares, 1.0)


def duration_errors(rows: Iterable[AlignedCompute], step: float) -> Errors:
    """Return the errors of what each compute took."""
    return _errors([row.predicted_seconds - row.recorded_seconds for row in rows], step)


def _errors(seconds: Sequence[float], step: float) -> Errors:
    found = np.abs(np.array(seconds)) / step
    return Errors(float(np.median(found)), float(np.quantile(found, 0.95)), float(found.max()))


def recorded_ranks(run: RecordedRun) -> list[RankShares]:
    """Return each rank's shares, medians over the traced steps."""
    of = reading.read([run.path]).timeline
    rows = [
        [figures(one, step.seconds) for one in shares(of, of.graph.step == number)]
        for number, step in enumerate(run.steps)
    ]
    return [
        RankShares(found[0].rank, *np.median([row[1:] for row in found], axis=0).tolist())
        for found in zip(*rows, strict=True)
    ]


def predicted_ranks(predicted: Prediction) -> list[RankShares]:
    """Return each rank's shares, with mean costs."""
    timeline = predicted.timeline
    return [figures(one, float(timeline.end.max())) for one in shares(timeline)]


def figures(of: Shares, step: float) -> RankShares:
    """Return a rank's figures in a step of so many seconds."""
    busy = of.compute_share * of.span_s
    return RankShares(of.rank, busy, step - busy, 1.0 - busy / step, of.overlap_share)
