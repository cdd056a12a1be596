"""The costs of steps on CPU processes: operators by group, Python between them, gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from schedules.input_error import InputError
from sim.graph import Communication, Compute, Floats, Graph
from validation.processes.cores import CollectiveCost
from validation.processes.steps.groups import REST, amount, of_kernel
from validation.processes.steps.host import per_kernel


@dataclass(frozen=True)
class Costs:
    """Fitted to recordings; ``sources`` has their digests."""

    rates: Mapping[str, float]  # by group: seconds per FLOP or byte
    host: Mapping[str, float]  # see validation.processes.steps.host
    gloo: Mapping[str, tuple[float, float, float]]
    """By kind (:data:`KINDS`): seconds in which nothing runs; then a thread's seconds on each rank
    per byte that it sends, and per square root of the bytes, as larger messages move faster."""
    busier: float  # timed steps of the sources over profiled ones
    cores: int
    sources: Mapping[str, str]
    spread: tuple[float, ...] = (1.0,)  # kernels' seconds over their mean, equally likely
    rank_spread: Mapping[bool, tuple[float, ...]] = field(default_factory=dict)
    """The same for all kernels of a rank in a step: where calls block (True), so that ranks keep
    waiting for each other, and where collectives run beside kernels of ranks that drift apart."""
    message_spread: tuple[float, ...] = (1.0,)  # the same for collectives


KINDS = {"all_reduce": "reduce", "reduce_scatter": "reduce", "all_gather": "gather"}
"""What gloo does for a collective; it runs a reduce-scatter as an all-reduce."""


def sent(work: Communication) -> float:
    """Return the bytes that each rank sends in a ring. Raises InputError if not in KINDS."""
    if work.collective not in KINDS:
        raise InputError(f"gloo's {work.collective} is not known here")
    times = 1.0 if KINDS[work.collective] == "gather" else 2.0
    return times * (len(work.ranks) - 1) / len(work.ranks) * work.bytes


def work_seconds(graph: Graph, costs: Costs) -> Floats:
    """Return the seconds of each op's operator alone, (ops,); 0 for communication."""

    def seconds(_: str, group: str, work: Compute) -> float:
        rest = costs.rates[REST] * work.bytes if group == "gemm" else 0.0
        return costs.rates[group] * amount(group, work) + rest

    return _of_kernels(graph, seconds) * costs.busier


def kernel_seconds(graph: Graph, costs: Costs, mode: str) -> Floats:
    """Return those seconds with the Python around them, (ops,)."""
    around = _of_kernels(graph, lambda name, *_: per_kernel(costs.host, mode, name))
    return work_seconds(graph, costs) + around * costs.busier


def _of_kernels(graph: Graph, seconds: Callable[[str, str, Compute], float]) -> Floats:
    """Return seconds by name, group and work of each kernel; each distinct one is priced once."""
    pairs, row = np.unique(np.stack([graph.name, graph.work]), axis=1, return_inverse=True)
    out = np.zeros(pairs.shape[1])
    for k, (name, w) in enumerate(pairs.T.tolist()):
        work = graph.works[w]
        if isinstance(work, Compute) and (group := of_kernel(graph.names[name], work)):
            out[k] = seconds(graph.names[name], group, work)
    return out[row.ravel()]


def messages(graph: Graph, costs: Costs) -> list[CollectiveCost]:
    """Return the cost of each part."""
    works = [graph.works[w] for w in graph.part_work.tolist()]
    return [_message(work, costs) for work in works if isinstance(work, Communication)]


def _message(work: Communication, costs: Costs) -> CollectiveCost:
    size = sent(work)
    latency, per_byte, per_root = costs.gloo[KINDS[work.collective]]
    busy = per_byte * size + per_root * size**0.5
    return CollectiveCost(latency * costs.busier, busy * costs.busier)
