"""Costs of CPU processes from recorded steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from sim.graph import Communication, Graph
from traces.cpu_steps import CpuRun
from validation.cpu import host
from validation.cpu.costs import Costs, sent
from validation.cpu.groups import GROUPS, REST, amount, of_kernel, of_leaf
from validation.cpu.job import graph, mode_of
from validation.cpu.predict import step

CORES = 2  # unless a recording says how many its machine had
SWEPT = 10  # repetitions that a row of a sweep is the mean of


def fit(runs: Sequence[CpuRun], known: Mapping[str, float] | None = None) -> Costs:
    """Costs that these runs show; ``known`` are those of Python that none of them shows."""
    if not runs:
        raise ValueError("costs are fitted to recordings, and there is none")
    graphs = [graph(mode_of(run.mode), run.world, run.config) for run in runs]
    cores = {int(run.facts.get("cores") or CORES) for run in runs}
    if len(cores) > 1:
        raise ValueError(f"recordings are of machines with {sorted(cores)} cores; of one would do")
    latency, per_byte, spread = _messages(runs, min(cores))
    costs = Costs(
        _rates(runs, graphs), _host(runs, graphs, known or {}), latency, per_byte, 1.0,
        min(cores), {run.name: run.digest for run in runs}, _noise(runs), spread,
    )  # fmt: skip
    return replace(costs, busier=_busier(runs, graphs, costs))


def _rates(runs: Sequence[CpuRun], graphs: Sequence[Graph]) -> dict[str, float]:
    """Seconds per FLOP or byte: what operators took beside no collective, over our work."""
    seconds, work = defaultdict[str, float](float), defaultdict[str, float](float)
    for run, of in zip(runs, graphs, strict=True):
        for leaf in run.leaves:
            alone = leaf.alone_s if leaf.alone else leaf.mean_s
            seconds[of_leaf(leaf, run.config, run.mode)] += leaf.count * alone
        for name, kernel in host.of_rank(of):
            if group := of_kernel(name, kernel):
                work[group] += amount(group, kernel)
                work[REST] += kernel.bytes if group == "gemm" else 0.0
    rates = {of: seconds[of] / work[of] if work[of] else 0.0 for of in (*GROUPS, REST)}
    for of, like in (("shard_copy", "bucket_copy"), ("bucket_copy", "shard_copy")):
        rates[of] = rates[of] or rates[like]  # copies of parameters are seen in one or the other
    return rates


def _host(
    runs: Sequence[CpuRun], graphs: Sequence[Graph], known: Mapping[str, float]
) -> dict[str, float]:
    spent, count = defaultdict[str, float](float), defaultdict[str, int](int)
    units = 0
    for run, of in zip(runs, graphs, strict=True):
        mode = mode_of(run.mode)
        spent[mode] += float(np.mean([row.host_s for row in run.ranks]))
        count[mode] += host.kernels(of)
        units += sum(name in host.COPY_INS for name, _ in host.of_rank(of))
    out = dict(known)
    if count["tp"]:
        out[host.TENSOR] = spent["tp"] / count["tp"]
    if count["ddp"]:
        out[host.PLAIN] = spent["ddp"] / count["ddp"]
    if count["fsdp2"] and host.PLAIN in out:
        left = spent["fsdp2"] - out[host.PLAIN] * count["fsdp2"]
        out[host.UNIT] = max(left, 0.0) / units
    elif count["fsdp2"]:
        left = spent["fsdp2"] - out.setdefault(host.UNIT, 0.0) * units
        out[host.PLAIN] = max(left, 0.0) / count["fsdp2"]
    return out


def _noise(runs: Sequence[CpuRun]) -> tuple[float, ...]:
    """Kernels' seconds over their mean, as often as each was seen."""
    found = np.sort(np.concatenate([np.array(run.noise or (1.0,)) for run in runs]))
    return tuple((found / found.mean()).tolist())


def _messages(
    runs: Sequence[CpuRun], cores: int
) -> tuple[float, float, tuple[float, ...]]:
    """Latency, seconds per byte sent, and samples over what both give; least squares.

    Collectives are taken apart from what slows them: beside main threads that compute, gloo's
    share ``cores`` with twice as many threads as ranks. Those that wait for another of their own
    rank say nothing.
    """
    found = [sample for run in runs for sample in _samples(run, cores)]
    if not found:
        raise ValueError("no recording has a collective, so nothing is known of gloo")
    size, seconds = np.array(found).T
    terms = np.stack([np.ones(len(size)), size], axis=1)
    latency, per_byte = nnls(terms, seconds)[0].tolist()
    ratio = seconds / (latency + per_byte * size)
    return latency, per_byte, tuple((ratio / ratio.mean()).tolist())


def _samples(run: CpuRun, cores: int) -> Iterator[tuple[float, float]]:
    """(bytes that a rank sends, seconds) of collectives, and of the sweep of all-reduces."""
    ranks = tuple(range(run.world))
    slower = 1.0 - min(1.0, cores / (2 * run.world))
    before: tuple[int, float] = (-1, 0.0)
    for one in sorted(run.moved, key=lambda m: (m.step, m.begin_s)):
        if one.step > before[0] or one.begin_s >= before[1]:
            work = Communication(one.collective, one.bytes, ranks, "")
            yield sent(work), one.end_s - one.begin_s - slower * one.computing_s
            before = (one.step, one.end_s)
    for size, micro in run.facts.get("allreduce_us") or ():
        work = Communication("all_reduce", float(size), ranks, "")
        yield from [(sent(work), float(micro) * 1e-6)] * SWEPT


def _busier(runs: Sequence[CpuRun], graphs: Sequence[Graph], costs: Costs) -> float:
    """Medians of timed steps over the simulated ones, together."""
    timed = sum(float(np.median(run.step_s)) for run in runs)
    pairs = zip(runs, graphs, strict=True)
    simulated = (float(step(of, costs, mode_of(run.mode)).end.max()) for run, of in pairs)
    return timed / sum(simulated)
