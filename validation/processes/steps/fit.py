"""Fits the costs of CPU processes to recorded steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from schedules.input_error import InputError
from sim.graph import Communication, Graph
from traces.cpu_steps import CpuRun
from validation.processes.steps import host
from validation.processes.steps.costs import KINDS, Costs, sent
from validation.processes.steps.groups import GROUPS, REST, amount, of_kernel, of_leaf
from validation.processes.steps.job import blocks, graph, mode_of

CORES = 2  # used if a recording does not say how many its machine had
SWEPT = 10  # a row of a sweep is the mean of so many repetitions


def fit(runs: Sequence[CpuRun], known: Mapping[str, float] | None = None) -> Costs:
    """Return the costs that these runs show; ``known`` are further costs of Python."""
    if not runs:
        raise InputError("costs are fitted to recordings, but there is none")
    graphs = [graph(mode_of(run.mode), run.world, run.config) for run in runs]
    cores = {cores_of(run) for run in runs}
    if len(cores) > 1:
        raise InputError(f"recordings are of machines with {sorted(cores)} cores; give one kind")
    gloo, spread = _messages(runs, min(cores))
    return Costs(
        _rates(runs, graphs), _host(runs, graphs, known or {}), gloo, _busier(runs),
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


Gloo = tuple[float, float, float]


def _messages(runs: Sequence[CpuRun], cores: int) -> tuple[dict[str, Gloo], tuple[float, ...]]:
    """Return what collectives cost (see :class:`Costs`), and samples over what is usual.

    A kind that is not seen in enough sizes to tell three constants is taken to cost as all do.
    """
    samples = [sample for run in runs for sample in _samples(run, cores)]
    if not samples:
        raise InputError("no recording has a collective, so nothing is known of gloo")
    rows = _usual(samples)
    gloo = {}
    for kind in {*KINDS.values()}:
        mine = [row for row in rows if row.kind == kind]
        enough = len({row.size for row in mine}) >= 3
        gloo[kind] = _least_squares(mine if enough else rows)
    usual = {(row.source, row.kind, row.size): row.seconds for row in rows}
    ratio = np.array([one.seconds / usual[one.source, one.kind, one.size] for one in samples])
    return gloo, tuple((ratio / ratio.mean()).tolist())


def _usual(samples: Sequence[Sample]) -> list[Row]:
    """Return, by run, kind and size, the median step's mean, since some steps are disturbed."""
    steps = defaultdict[tuple[str, str, float], defaultdict[int, list[float]]](
        lambda: defaultdict(list)
    )
    for one in samples:
        steps[one.source, one.kind, one.size][one.step].append(one.seconds)
    return [
        Row(*key, float(np.median([np.mean(found) for found in of.values()])),
            sum(map(len, of.values())))
        for key, of in steps.items()
    ]  # fmt: skip


def _least_squares(rows: Sequence[Row]) -> Gloo:
    """Fit by least squares of relative errors, weighted by count; no constant is negative."""
    if not any(row.seconds > 0 for row in rows):
        raise InputError("no collective of the recordings takes time that computing does not")
    size, seconds, count = np.array([row[2:] for row in rows if row.seconds > 0], float).T
    scale = np.sqrt(count) / seconds
    terms = np.stack([np.ones(len(size)), size, np.sqrt(size)], axis=1) * scale[:, None]
    latency, per_byte, per_root = nnls(terms, seconds * scale)[0].tolist()
    return latency, per_byte, per_root


class Row(NamedTuple):
    """Collectives of one run, kind and size: seconds of one, and how many were seen."""

    source: str
    kind: str
    size: float
    seconds: float
    often: int


class Sample(NamedTuple):
    """One collective: of which run, kind and step, bytes that a rank sends, seconds alone."""

    source: str
    kind: str
    step: int
    size: float
    seconds: float


def _samples(run: CpuRun, cores: int) -> Iterator[Sample]:
    """Yield collectives, corrected for what slows them, and the sweep of all-reduces.

    Beside main threads that compute, gloo's threads share ``cores`` with twice as many threads as
    ranks. Collectives that wait for another one of their own rank are left out.
    """
    ranks = tuple(range(run.world))
    slower = 1.0 - min(1.0, cores / (2 * run.world))
    before: tuple[int, float] = (-1, 0.0)
    for one in sorted(run.moved, key=lambda m: (m.step, m.begin_s)):
        if one.step > before[0] or one.begin_s >= before[1]:
            size = sent(Communication(one.collective, one.bytes, ranks, ""))
            alone = one.end_s - one.begin_s - slower * one.computing_s
            yield Sample(run.digest, KINDS[one.collective], one.step, size, alone)
            before = (one.step, one.end_s)
    for size, micro in run.facts.get("allreduce_us") or ():
        work = Communication("all_reduce", float(size), ranks, "")
        swept = Sample("", "reduce", 0, sent(work), float(micro) * 1e-6)
        yield from [swept] * SWEPT


def _busier(runs: Sequence[CpuRun]) -> float:
    """Return timed steps over profiled ones, from which costs are taken: the median of runs."""
    return float(np.median([np.median(run.step_s) / np.median(run.profiled_s) for run in runs]))
