"""Explains a recorded step from the schedule on: what each cause adds, one after another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from schedules import Plan
from sim.runs.schedule_run import run_plan
from traces.recorded.run import RecordedRun
from validation.processes.pipelines.costs import Costs
from validation.processes.pipelines.gaps import ENTER, FINISH, HEAD, LOSS, NEXT, ONWARD, RESUME
from validation.processes.pipelines.graph import OVER, RECEIVE, SEND
from validation.processes.pipelines.measure import fit
from validation.processes.pipelines.predict import timeline
from validation.processes.pipelines.workload import Workload
from validation.processes.predict import Prediction

CAUSES = ("missing edge", "cost model", "launch gap", "latency", "contention", "noise", "moment",
          "rest")  # fmt: skip
LAYERS = ("F", "B", "I", "W")
HOST = (HEAD, RESUME, ONWARD, NEXT, ENTER, LOSS, FINISH, SEND, RECEIVE)


def waterfall(
    run: RecordedRun, plan: Plan, load: Workload, costs: Costs, predicted: Prediction
) -> dict[str, float]:
    """Return seconds by cause, from ``schedule`` on; they add up to the median recorded step.

    schedule: the plan with the stages' own time, no messages · missing edge: sends and receives
    that block, pairs that send behind both · cost model: computes take longer than their time ·
    launch gap: the thread between them · latency: of messages · contention: waiting for a core ·
    noise: the median of the draws less the step with mean costs · moment: with what this very run
    measured instead, since a machine is not always as fast · rest.
    """
    free, alone = _only(costs, LAYERS), load._replace(cores=0)
    steps = [
        _schedule(plan, load, free),
        _seconds(alone, free),
        _seconds(alone, _only(costs, (*LAYERS, OVER))),
        _seconds(alone, _only(costs, (*LAYERS, OVER, *HOST))),
        _seconds(alone, costs),
        float(predicted.timeline.end.max()),
        predicted.seconds,
        predicted.seconds + _own(run, load, costs) - float(predicted.timeline.end.max()),
        float(np.median(run.seconds)),
    ]
    return {"schedule": steps[0], **dict(zip(CAUSES, np.diff(steps).tolist(), strict=True))}


def _only(costs: Costs, names: Collection[str]) -> Costs:
    spreads = {name: of for name, of in costs.spreads.items() if name in names}
    return replace(costs, spreads=spreads, sizes=())


def _seconds(load: Workload, costs: Costs) -> float:
    return float(timeline(load, costs).end.max())


def _schedule(plan: Plan, load: Workload, free: Costs) -> float:
    times = load.stages.seconds
    if times is None:
        of = {name: free.of(name).mean * free.busier * load.stages.layers for name in LAYERS}
        times = {"F": of["F"], "I": of["I"] or of["B"] / 2, "W": of["W"] or of["B"] / 2}
    return run_plan(plan, times, pair="serial").seconds


def _own(run: RecordedRun, load: Workload, costs: Costs) -> float:
    """Return the step with mean costs of this run."""
    return _seconds(load, replace(fit([run], costs.name), sizes=()))
