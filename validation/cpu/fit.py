"""Costs of CPU processes from recorded steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from sim.graph import Communication, Compute, Graph
from traces.cpu_steps import CpuRun
from validation.cpu.costs import Costs, sent
from validation.cpu.groups import GROUPS, REST, of_kernel, of_leaf, work_of
from validation.cpu.job import graph
from validation.cpu.predict import step

CORES = 2  # unless a recording says how many its machine had


def fit(runs: Sequence[CpuRun], host: Mapping[str, float] | None = None) -> Costs:
    """Costs that these runs show; ``host`` has those of modes that none of them is of."""
    if not runs:
        raise ValueError("costs are fitted to recordings, and there is none")
    graphs = [graph(run.mode, run.world, run.config) for run in runs]
    cores = {int(run.facts.get("cores") or CORES) for run in runs}
    if len(cores) > 1:
        raise ValueError(f"recordings are of machines with {sorted(cores)} cores; of one would do")
    latency, per_byte = _messages(runs, min(cores))
    costs = Costs(
        _rates(runs, graphs), {**(host or {}), **_host(runs, graphs)}, latency, per_byte, 1.0,
        min(cores), {run.name: run.digest for run in runs},
    )  # fmt: skip
    return replace(costs, busier=_busier(runs, graphs, costs))


def _rates(runs: Sequence[CpuRun], graphs: Sequence[Graph]) -> dict[str, float]:
    seconds, work = defaultdict[str, float](float), defaultdict[str, float](float)
    for run, of in zip(runs, graphs, strict=True):
        for leaf in run.leaves:
            alone = leaf.alone_s if leaf.alone else leaf.mean_s
            seconds[of_leaf(leaf, run.config)] += leaf.count * alone
        for group, size in work_of(of).items():
            work[group] += size
        work[REST] += _bytes_of_products(of)
    return {
        group: seconds[group] / work[group] if work[group] else 0.0 for group in (*GROUPS, REST)
    }


def _bytes_of_products(graph: Graph) -> float:
    one = graph.work[graph.rank == graph.rank.min()].tolist()
    works = (graph.works[w] for w in one)
    return sum(w.bytes for w in works if isinstance(w, Compute) and w.kind == "gemm")


def _host(runs: Sequence[CpuRun], graphs: Sequence[Graph]) -> dict[str, float]:
    """Seconds per kernel of each mode."""
    spent, count = defaultdict[str, float](float), defaultdict[str, int](int)
    for run, of in zip(runs, graphs, strict=True):
        spent[run.mode] += float(np.mean([row.host_s for row in run.ranks]))
        count[run.mode] += kernels(of)
    return {mode: spent[mode] / count[mode] for mode in spent}


def kernels(graph: Graph) -> int:
    """Kernels of one rank that take something."""
    one = graph.rank == graph.rank.min()
    rows = zip(graph.name[one].tolist(), graph.work[one].tolist(), strict=True)
    works = ((graph.names[name], graph.works[w]) for name, w in rows)
    return sum(isinstance(w, Compute) and of_kernel(name, w) != "" for name, w in works)


def _messages(runs: Sequence[CpuRun], cores: int) -> tuple[float, float]:
    """Latency and seconds per byte sent, least squares of the medians of each size.

    While main threads compute, those of gloo get ``cores`` shared by twice as many as ranks.
    """
    found = defaultdict[float, list[float]](list)
    for run in runs:
        slower = 1.0 - min(1.0, cores / (2 * run.world))
        for one in run.moved:
            size = sent(Communication(one.collective, one.bytes, tuple(range(run.world)), ""))
            last = one.end_s - one.begin_s
            found[size].append(last - slower * one.computing_s)
    sizes = sorted(found)
    if not sizes:
        raise ValueError("no recording has a collective, so nothing is known of gloo")
    weight = np.sqrt([len(found[size]) for size in sizes])
    terms = np.stack([np.ones(len(sizes)), np.array(sizes)], axis=1) * weight[:, None]
    seconds = np.array([np.median(found[size]) for size in sizes]) * weight
    latency, per_byte = nnls(terms, seconds)[0].tolist()
    return latency, per_byte


def _busier(runs: Sequence[CpuRun], graphs: Sequence[Graph], costs: Costs) -> float:
    """Medians of timed steps over the simulated ones, together."""
    timed = sum(float(np.median(run.step_s)) for run in runs)
    simulated = (
        float(step(of, costs, run.mode).end.max()) for run, of in zip(runs, graphs, strict=True)
    )
    return timed / sum(simulated)
