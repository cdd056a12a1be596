"""A recorded parallel step beside its prediction: what threads do, and each collective."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from sim.graph import Communication
from sim.timeline import Timeline
from traces.cpu_steps import CpuRun
from validation.cpu.predict import figures


class Row(NamedTuple):
    """Seconds of a step, or counts; medians over profiled steps and ranks."""

    name: str
    recorded: float
    predicted: float


def rows(run: CpuRun, predicted: Timeline) -> list[Row]:
    """Busy and moving seconds, and of each kind of collective how many and how long.

    Raises ValueError where the step has other collectives than the recorded one.
    """
    ours = figures(predicted)
    busy = [row.math_s + row.host_s for row in run.ranks]
    out = [
        Row("busy_s", _median(busy), _median([row.busy_s for row in ours])),
        Row("moving_s", _median([r.moving_s for r in run.ranks]), _median([r.moving_s for r in ours])),
    ]
    there, here = _recorded(run), _predicted(predicted)
    for kind in sorted(there.keys() | here.keys()):
        a, b = there.get(kind, []), here.get(kind, [])
        steps = max(len(run.profiled_s), 1)
        out.append(Row(f"{kind}: count", len(a) / steps, len(b)))
        out.append(Row(f"{kind}: bytes", sum(x for x, _ in a) / steps, sum(x for x, _ in b)))
        out.append(Row(f"{kind}: each_s", _mean(a), _mean(b)))
    return out


def _recorded(run: CpuRun) -> dict[str, list[tuple[float, float]]]:
    out = defaultdict[str, list[tuple[float, float]]](list)
    for one in run.moved:
        out[one.collective].append((one.bytes, one.end_s - one.begin_s))
    return out


def _predicted(timeline: Timeline) -> dict[str, list[tuple[float, float]]]:
    """Of each collective its bytes, and seconds from when the last rank began."""
    graph = timeline.graph
    out = defaultdict[str, list[tuple[float, float]]](list)
    op = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    begin = np.zeros(len(graph.part_work))
    end = np.zeros(len(graph.part_work))
    np.maximum.at(begin, graph.part, timeline.start[op])
    np.maximum.at(end, graph.part, timeline.end[op])
    for part, w in enumerate(graph.part_work.tolist()):
        work = graph.works[w]
        if isinstance(work, Communication):
            out[work.collective].append((work.bytes, float(end[part] - begin[part])))
    return out


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _mean(found: list[tuple[float, float]]) -> float:
    return float(np.mean([seconds for _, seconds in found])) if found else 0.0
