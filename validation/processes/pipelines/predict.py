"""Prices the calls of a pipeline's processes, and predicts its step and that of another sitting."""

from __future__ import annotations

import math

import numpy as np

from sim.graph import Floats
from sim.timeline import Timeline
from validation.processes import predict as processes
from validation.processes.cores import CollectiveCost, Priced, on_cores
from validation.processes.pipelines.costs import ARRIVAL, Costs
from validation.processes.pipelines.graph import RECEIVE, SEND, WORK, graph
from validation.processes.pipelines.workload import Stages, Workload
from validation.processes.predict import DRAWS, Prediction, Spreads

HELD = (0.1, 0.9)
"""The quantiles between which 80 % of steps should lie."""
BETWEEN = 0.16
"""The spread of costs between sittings on one machine: standard deviation of the logarithm of
what a step of the same run costs beyond its stages. Measured on runs of ``traces/data`` recorded
again: 16.3 and 13.5 ms of 1F1B, 34.1 and 26.4 ms of ZB-V; three in one sitting differ by 3 %."""


def predict(load: Workload, costs: Costs, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Predict the step of some processes."""
    return processes.predict(*priced(load, costs), draws, seed)


def interval(
    load: Workload, costs: Costs, predicted: Prediction, seed: int = 0
) -> tuple[float, float]:
    """Return the seconds between which 80 % of the steps of another sitting lie.

    What a drawn step takes beyond its stages is stretched as sittings differ; a mean of k sources
    is off by what k are.
    """
    alone, rng = bare(load), np.random.default_rng(seed)
    spread = BETWEEN * math.sqrt(1 + 1 / max(len(costs.sources), 1))
    sittings = np.exp(spread * rng.standard_normal(len(predicted.drawn)))
    low, high = np.quantile(alone + (predicted.steps - alone) * sittings, HELD).tolist()
    return low, high


def bare(load: Workload) -> float:
    """Return the seconds of a step whose processes cost nothing; 0 for real layers."""
    if load.stages.seconds is None:
        return 0.0
    return float(timeline(load, Costs("none", {})).end.max())


def timeline(load: Workload, costs: Costs) -> Timeline:
    """Simulate one step with mean costs."""
    return on_cores(priced(load, costs)[0])


def starts(predicted: Prediction) -> Floats:
    """Return the median start of each op, (ops,), over the draws."""
    return np.asarray(np.median([one.start for one in predicted.drawn], axis=0))


def computes(of: Timeline, seconds: Floats) -> dict[str, float]:
    """Return, for each compute by name, its row of a column of seconds."""
    stream = of.graph.streams.index("compute")
    rows = np.flatnonzero(of.graph.stream == stream)
    return {of.graph.names[of.graph.name[row]]: float(seconds[row]) for row in rows}


def priced(load: Workload, costs: Costs) -> tuple[Priced, Spreads]:
    """Return what a step takes on average, and how its costs differ."""
    of, more = graph(load), costs.more(load.bytes)
    names, seconds, differ = np.array(of.costs), np.zeros(len(of.graph)), []
    for name in dict.fromkeys(of.costs):
        some = _seconds(name, load.stages, costs) + (more.copy if name == SEND else 0.0)
        rows = np.flatnonzero(names == name)
        seconds[rows] = some.mean()
        differ.append((rows, _factors(some)))
    arrival = _seconds(ARRIVAL, load.stages, costs) + more.wire
    # the first part of a message's latency is the call that posted it, which has a core
    call = min(float(_seconds(RECEIVE, load.stages, costs).mean()), float(arrival.mean()))
    message = CollectiveCost(call, float(arrival.mean()) - call)
    messages = [message] * len(of.graph.part_work)
    mean = Priced(of.graph, load.cores, seconds, messages, of.sleeps)
    return mean, Spreads(differ, _factors(arrival))


def _seconds(name: str, stages: Stages, costs: Costs) -> Floats:
    """Return the seconds of a cost, equally likely, shape (bins,)."""
    if name == WORK:
        return np.array([costs.work])
    times = costs.busier * (stages.layers if name in "FBIW" else 1)
    return times * np.array(costs.of(name).bins)


def _factors(of: Floats) -> list[float]:
    return (of / of.mean()).tolist() if of.mean() else [1.0]
