"""The causal profile: what the step would gain if one kind of op were x % faster.

The gain is found exactly, by a second simulation, and to first order, from the time of that kind on
the critical path. The first order is right as long as no other path becomes critical and sharing
stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.analysis.activity import HOST, activities
from sim.analysis.path import LAUNCH, causes, path
from sim.engine import simulate
from sim.graph import Graph
from sim.late import pd
from sim.machine.edits import Edit, applied
from sim.machine.hardware import Machine
from sim.timeline import Timeline

PERCENTS = (1.0, 10.0, 50.0)


def causal_profile(
    graph: Graph,
    machine: Machine,
    timeline: Timeline | None = None,
    percents: Sequence[float] = PERCENTS,
    by: str = "cause",
    most: int = 20,
) -> pd.DataFrame:
    """Say what the step would gain if each kind of op were so many percent faster.

    A row for each kind and percentage; the kinds with most seconds on the critical path come first.
    ``by`` is "cause" (kinds of kernels, dimensions of communication) or "name". ``path_s`` are the
    seconds of the kind on the critical path, ``first_order_s`` is the gain that follows from these,
    and ``gain_s`` the gain of a second simulation. Takes up to ``most`` simulations for each
    percentage.
    """
    before = simulate(graph, machine) if timeline is None else timeline
    label, on_path = _labels(before, by)
    names = sorted(set(label.tolist()), key=lambda name: (-on_path.get(name, 0.0), name))
    rows = []
    for name in names[:most]:
        for percent in percents:
            faster = applied(graph, machine, Edit("work", label == name, 1.0 - percent / 100.0))
            gain = before.seconds - simulate(*faster).seconds
            share = on_path.get(name, 0.0)
            rows.append((name, percent, share, share * percent / 100.0, gain))
    return pd.DataFrame(rows, columns=[by, "percent", "path_s", "first_order_s", "gain_s"])


def _labels(timeline: Timeline, by: str) -> tuple[np.ndarray, dict[str, float]]:
    """Return the kind of each op, and each kind's seconds on the critical path without lags."""
    graph, kinds = timeline.graph, activities(timeline.graph)
    cause = np.array(causes(graph), object)[graph.work]
    cause[kinds.code == kinds.names.index(HOST)] = LAUNCH
    label = cause if by == "cause" else np.array(graph.names, object)[graph.name]
    of = path(timeline)
    runs = of[(of["start"] >= timeline.start[of["op"]]) & (of["cause"] == cause[of["op"]])]
    sums = runs.groupby(label[runs["op"]])["seconds"].sum()
    return label, {str(name): float(seconds) for name, seconds in sums.items()}
