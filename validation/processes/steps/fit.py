"""Fits the costs of CPU processes to recorded steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from schedules.input_error import InputError
from sim.graph import Graph
from traces.cpu_steps import CpuRun
from validation.processes.steps import gloo, host
from validation.processes.steps.costs import Costs
from validation.processes.steps.groups import GROUPS, REST, amount, of_kernel, of_leaf
from validation.processes.steps.job import blocks, graph, mode_of

CORES = 2  # used if a recording does not say how many its machine had


def fit(runs: Sequence[CpuRun], known: Mapping[str, float] | None = None) -> Costs:
    """Return the costs that these runs show; ``known`` are further costs of Python."""
    if not runs:
        raise InputError("costs are fitted to recordings, but there is none")
    graphs = [graph(mode_of(run.mode), run.world, run.config) for run in runs]
    cores = {cores_of(run) for run in runs}
    if len(cores) > 1:
        raise InputError(f"recordings are of machines with {sorted(cores)} cores; give one kind")
    prices, spread = gloo.fitted(runs, min(cores))
    return Costs(
        _rates(runs, graphs), _host(runs, graphs, known or {}), prices, _busier(runs),
        min(cores), {run.name: run.digest for run in runs}, _noise(runs), _ranks(runs), spread,
    )  # fmt: skip


def cores_of(run: CpuRun) -> int:
    """Return the cores of a run's machine, 2 if unknown. Raises InputError if it is no number."""
    machine = run.facts.get("machine")
    cores = (machine.get("cores") if isinstance(machine, dict) else None) or CORES
    if not isinstance(cores, int) or cores < 1:
        raise InputError(f"recording {run.name} is of a machine with {cores!r} cores")
    return cores


def _rates(runs: Sequence[CpuRun], graphs: Sequence[Graph]) -> dict[str, float]:
    """Return seconds per FLOP or byte: what operators took beside no collective, over our work."""
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
    # copies of parameters are seen in one or the other
    for group, like in (("shard_copy", "bucket_copy"), ("bucket_copy", "shard_copy")):
        rates[group] = rates[group] or rates[like]
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
    """Return kernels' seconds over their mean, as often as each was seen."""
    found = np.sort(np.concatenate([np.array(run.noise or (1.0,)) for run in runs]))
    return tuple((found / found.mean()).tolist())


def _ranks(runs: Sequence[CpuRun]) -> dict[bool, tuple[float, ...]]:
    """Return how ranks of one step differed, by whether calls block; all runs if none is alike."""
    found = defaultdict[bool, list[float]](list)
    for run in runs:
        found[blocks(mode_of(run.mode))] += _differences(run)
    every = [*found[True], *found[False]]
    return {how: tuple(found[how] or every) for how in (True, False)}


def _differences(run: CpuRun) -> list[float]:
    """Return each rank's computing over the ranks' mean, less the effect of single operators."""
    busy = np.array([row.math_s + row.host_s for row in run.ranks]).reshape(-1, run.world)
    found = (busy / busy.mean(axis=1, keepdims=True)).ravel() - 1.0
    own = np.array([[leaf.count * leaf.mean_s, leaf.mean_s] for leaf in run.leaves])
    each = np.var(run.noise or (1.0,)) * float(own.prod(axis=1).sum()) / own[:, 0].sum() ** 2
    whole = float(found.var()) or 1.0
    left = 1.0 + found * max(0.0, 1.0 - each / whole) ** 0.5
    return [float(one) for one in left]


def _busier(runs: Sequence[CpuRun]) -> float:
    """Return timed steps over profiled ones, from which costs are taken: the median of runs."""
    return float(np.median([np.median(run.step_s) / np.median(run.profiled_s) for run in runs]))
