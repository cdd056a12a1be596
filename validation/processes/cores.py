"""Models processes that share the cores of one machine: a graph and its prices for the engine.

Every process computes in one thread. A collective of gloo keeps one more thread of each of its
ranks busy, which runs the collectives of its group one at a time. All running threads share the
cores evenly, and none takes more than one. The engine does the same with flows on links (max-min
fair). So seconds of a thread are bytes here, a core carries one per second, and a kernel is a flow
over the link of its thread and that of the cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Communication, Floats, Graph, offsets
from sim.machine.hardware import CommunicationCost, Machine, table

CORES = 0  # the link of all threads; then one for each rank, and one for each group of ranks


class CollectiveCost(NamedTuple):
    """What a collective takes: seconds in which nothing runs, then those of a thread per rank."""

    latency: float
    busy: float


def shared(
    graph: Graph, kernels: Floats, messages: Sequence[CollectiveCost], cores: int
) -> tuple[Graph, Machine]:
    """Return the graph with kernels as flows, and the machine that it runs on.

    ``kernels``, (ops,), are seconds of each op alone (those of communication are not read);
    ``messages`` are costs of each part. Ops keep their rows, so times belong to the given graph
    too.
    """
    alone = np.diff(graph.part_start) == 0
    ranks = graph.ranks().tolist()
    link = {rank: 1 + k for k, rank in enumerate(ranks)}
    of = [int(graph.rank[i]) for i in np.flatnonzero(alone)]
    seconds = kernels[alone].tolist()
    sent = [graph.works[w] for w in graph.part_work.tolist()]
    groups = {group: k for k, group in enumerate(dict.fromkeys(map(_ranks, sent)))}
    works = [Communication("thread", s, (r,), "cpu") for s, r in zip(seconds, of, strict=True)]
    traffic = [
        *(_flow(0.0, s, link[r], 1) for s, r in zip(seconds, of, strict=True)),
        *(
            _flow(m.latency, m.busy, 1 + len(ranks) + groups[_ranks(w)], len(_ranks(w)))
            for m, w in zip(messages, sent, strict=True)
        ),
    ]
    columns: dict[str, Any] = _parts(graph, alone, len(works))
    made = replace(graph, works=(*works, *sent), **columns)
    capacity = np.array([cores, *[1.0] * (len(ranks) + len(groups))], np.float64)
    rows = iter(traffic)
    return made, table(made.works, lambda _: (0.0, 0.0, 0.0), lambda _: next(rows), capacity, 1)


def _ranks(work: object) -> tuple[int, ...]:
    if not isinstance(work, Communication):
        raise TypeError(work)
    return work.ranks


def _flow(latency: float, seconds: float, link: int, threads: int) -> CommunicationCost:
    """Return the cost of so many seconds on each of so many threads."""
    if not seconds:
        return CommunicationCost(latency)
    return CommunicationCost(latency, seconds, (CORES, link), (float(threads), 1.0))


def _parts(graph: Graph, alone: NDArray[np.bool_], own: int) -> dict[str, NDArray[Any]]:
    """Return columns in which every op without communication is a part of its own."""
    start = offsets(np.diff(graph.part_start) + alone)
    part = np.empty(start[-1], np.int32)
    tail = np.zeros(start[-1])
    first = start[:-1][alone]
    moved = np.ones(start[-1], np.bool_)
    moved[first] = False
    part[first], part[moved] = np.arange(own), graph.part + own
    tail[moved] = graph.part_tail
    work = np.empty(len(graph), np.int32)
    work[alone] = np.arange(own)
    work[~alone] = own + graph.part[graph.part_start[:-1][~alone]]
    return {
        "part_start": start,
        "part": part,
        "part_tail": tail,
        "part_work": np.arange(own + len(graph.part_work), dtype=np.int32),
        "work": work,
    }
