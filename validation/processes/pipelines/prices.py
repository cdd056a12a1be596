"""Prices the calls of all processes: seconds of each op and message, and how they differ."""

from __future__ import annotations

import numpy as np

from sim.graph import Floats
from validation.processes.cores import CollectiveCost, Priced
from validation.processes.pipelines.costs import ARRIVAL, Costs
from validation.processes.pipelines.graph import RECEIVE, SEND, WORK, graph
from validation.processes.pipelines.workload import Stages, Workload
from validation.processes.predict import Spreads


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
