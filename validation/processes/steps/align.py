"""Compares a recorded parallel step with its prediction: threads, operators, collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from sim.graph import Communication, Compute
from sim.timeline import Timeline
from traces.cpu_steps import CpuRun
from validation.processes.steps.costs import Costs, kernel_seconds, work_seconds
from validation.processes.steps.groups import of_kernel, of_leaf
from validation.processes.steps.predict import figures


class Row(NamedTuple):
    """Recorded and predicted, seconds or a count: of one rank and step, means."""

    name: str
    recorded: float
    predicted: float


CAUSES = {
    "cost model": "operators, alone",
    "contention": "operators, slowed by communication",
    "launch gap": "Python between",
    "latency": "waiting",
}
"""Rows of threads, by cause; together they are the step of one rank."""

Sent = dict[str, list[tuple[float, float]]]  # by collective: (bytes, seconds since all began)


def thread_rows(run: CpuRun, costs: Costs, mode: str, predicted: Timeline) -> list[Row]:
    """Return rows of the main thread: computing, Python, what it lost on its core, waiting."""
    graph, ours = predicted.graph, figures(predicted)
    each = kernel_seconds(graph, costs, mode).sum() / len(ours)
    math = work_seconds(graph, costs).sum() / len(ours)
    busy = float(np.mean([row.busy_s for row in ours]))
    step = float(predicted.end.max())
    own = fsum(leaf.count * (leaf.alone_s if leaf.alone else leaf.mean_s) for leaf in run.leaves)
    there = {
        name: float(np.mean([getattr(row, name) for row in run.ranks]))
        for name in ("math_s", "host_s", "wait_s", "moving_s", "exposed_s")
    }
    return [
        Row("operators, alone", own, math),
        Row("operators, slowed by communication", there["math_s"] - own, busy - each),
        Row("Python between", there["host_s"], each - math),
        Row("waiting", there["wait_s"], step - busy),
        Row("communication", there["moving_s"], float(np.mean([r.moving_s for r in ours]))),
        Row("of that exposed", there["exposed_s"], float(np.mean([r.exposed_s for r in ours]))),
    ]


def group_rows(run: CpuRun, costs: Costs, predicted: Timeline) -> list[Row]:
    """Return the seconds of each group of operators, alone on their core."""
    graph = predicted.graph
    there, here = defaultdict[str, float](float), defaultdict[str, float](float)
    for leaf in run.leaves:
        alone = leaf.alone_s if leaf.alone else leaf.mean_s
        there[of_leaf(leaf, run.config, run.mode)] += leaf.count * alone
    seconds, ranks = work_seconds(graph, costs), len(graph.ranks())
    for i, (name, w) in enumerate(zip(graph.name.tolist(), graph.work.tolist(), strict=True)):
        work = graph.works[w]
        if isinstance(work, Compute) and (group := of_kernel(graph.names[name], work)):
            here[group] += float(seconds[i]) / ranks
    there["gemm"] += there.pop("rest", 0.0)
    return [Row(group, there[group], here[group]) for group in sorted(there.keys() | here.keys())]


def message_rows(run: CpuRun, predicted: Timeline) -> list[Row]:
    """Return, per kind of collective, how many, how many bytes, and how long each takes."""
    there, here = _recorded(run), _predicted(predicted)
    steps, out = max(len(run.profiled_s), 1), []
    for kind in sorted(there.keys() | here.keys()):
        a, b = there.get(kind, []), here.get(kind, [])
        out += [
            Row(f"{kind}: count", len(a) / steps, len(b)),
            Row(f"{kind}: bytes", fsum(x for x, _ in a) / steps, fsum(x for x, _ in b)),
            Row(f"{kind}: seconds each", _mean(a), _mean(b)),
        ]
    return out


def order_violations(run: CpuRun, predicted: Timeline) -> list[str]:
    """Return steps whose kinds of collectives differ from ours; DDP cuts its own buckets."""
    graph = predicted.graph
    works = (graph.works[w] for w in graph.part_work[_by_start(predicted)].tolist())
    ours = [w.collective for w in works if isinstance(w, Communication)]
    out = []
    for step in range(len(run.profiled_s)):
        ran = [one.collective for one in run.moved if one.step == step]
        both = zip(ours, ran, strict=False)
        at = next((k for k, (a, b) in enumerate(both) if a != b), None)
        if at is not None:
            out.append(f"step {step}: collective {at} was {ran[at]}, but ours is {ours[at]}")
        elif len(ran) != len(ours) and not run.mode.startswith("ddp"):
            out.append(f"step {step}: {len(ran)} collectives ran, but ours has {len(ours)}")
    return out


def causes(
    rows: Sequence[Row], measured: float, predicted: float, busier: float
) -> Mapping[str, float]:
    """Return the seconds by which each cause takes the predicted step to the measured one.

    cost model: operators alone · contention: of these beside communication · launch gap: Python
    between · latency: waiting for communication · noise: of timed steps against the profiled ones
    of ``rows``, beyond what it was where costs are from (``busier``) · rest.
    """
    recorded = {row.name: busier * row.recorded for row in rows}
    ours = {row.name: row.predicted for row in rows}
    out = {"predicted": predicted}
    out |= {cause: recorded[name] - ours[name] for cause, name in CAUSES.items()}
    out["noise"] = measured - fsum(recorded[name] for name in CAUSES.values())
    out["rest"] = measured - fsum(out.values())
    return out


def _by_start(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.argsort(_spans(timeline)[0], kind="stable")


def _spans(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Return when the last member of each part began, and when the part ended, (parts,) each."""
    graph = timeline.graph
    op = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    begin, end = np.zeros(len(graph.part_work)), np.zeros(len(graph.part_work))
    np.maximum.at(begin, graph.part, timeline.start[op])
    np.maximum.at(end, graph.part, timeline.end[op])
    return begin, end


def _recorded(run: CpuRun) -> Sent:
    out = defaultdict[str, list[tuple[float, float]]](list)
    for one in run.moved:
        out[one.collective].append((one.bytes, one.end_s - one.begin_s))
    return out


def _predicted(timeline: Timeline) -> Sent:
    graph, (begin, end) = timeline.graph, _spans(timeline)
    out = defaultdict[str, list[tuple[float, float]]](list)
    for part, w in enumerate(graph.part_work.tolist()):
        work = graph.works[w]
        if isinstance(work, Communication):
            out[work.collective].append((work.bytes, float(end[part] - begin[part])))
    return out


def _mean(found: Sequence[tuple[float, float]]) -> float:
    return float(np.mean([seconds for _, seconds in found])) if found else 0.0
