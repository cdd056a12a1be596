"""Models processes that share the cores of one machine, on the engine.

Every process computes in one thread, which may sleep before an op needs a core. A collective of
gloo keeps one more thread of each of its ranks busy, which runs the collectives of its group one at
a time; a message keeps one of its receiver busy. All running threads share the cores evenly, and
none takes more than one. The engine does the same with flows on links (max-min fair). So seconds of
a thread are bytes here, a core carries one per second, and an op is a flow over the link of its
thread and that of the cores, after a latency in which the thread sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim.engine import simulate
from sim.graph import Bools, Communication, Floats, Graph, Longs, offsets
from sim.machine.hardware import CommunicationCost, Machine, table
from sim.timeline import Timeline

CORES = 0  # the link of all threads; then one for each rank, and one for each group of ranks


class CollectiveCost(NamedTuple):
    """What a collective takes: seconds in which nothing runs, then those of a thread per rank."""

    latency: float
    busy: float


class Priced(NamedTuple):
    """A graph, and what its ops take on processes: those of a thread, and collectives."""

    graph: Graph
    cores: int  # that all processes share; 0: as many as they want
    seconds: Floats  # (ops,) of a core, if it is alone; those of communication are not read
    messages: Sequence[CollectiveCost]  # of each part
    sleeps: Floats | None = None  # (ops,): before it needs a core; None: no op sleeps


def on_cores(of: Priced) -> Timeline:
    """Simulate the ops on their cores."""
    ran = simulate(*shared(of))
    return Timeline(of.graph, ran.start, ran.end)


def shared(of: Priced) -> tuple[Graph, Machine]:
    """Return the graph with ops as flows, and the machine that it runs on.

    Ops keep their rows, so times belong to the given graph too.
    """
    graph, alone = of.graph, np.diff(of.graph.part_start) == 0
    links: dict[Any, int] = {rank: 1 + k for k, rank in enumerate(graph.ranks().tolist())}
    sleeps = np.zeros(len(graph)) if of.sleeps is None else of.sleeps
    rows = np.stack([sleeps[alone], of.seconds[alone], graph.rank[alone]], axis=1)
    distinct, own = np.unique(rows, axis=0, return_inverse=True)
    works = [Communication("thread", s, (int(r),), f"cpu {a}") for a, s, r in distinct.tolist()]
    costs = [_flow(a, s, links[int(r)], 1) for a, s, r in distinct.tolist()]
    sent = [_message(graph.works[w]) for w in graph.part_work.tolist()]
    for cost, work in zip(of.messages, sent, strict=True):
        link = links.setdefault(work.ranks, 1 + len(links))
        costs.append(_flow(cost.latency, cost.busy, link, _threads(work)))
    made = replace(graph, works=(*works, *sent), **_parts(graph, alone, own.ravel(), len(works)))
    capacity = np.ones(1 + len(links))
    capacity[CORES] = of.cores or len(graph)
    prices = iter(costs)
    return made, table(made.works, lambda _: (0.0, 0.0, 0.0), lambda _: next(prices), capacity, 1)


def _message(work: object) -> Communication:
    if not isinstance(work, Communication):
        raise TypeError(work)
    return work


def _threads(work: Communication) -> int:
    return 1 if work.collective == "p2p" else len(work.ranks)


def _flow(latency: float, seconds: float, link: int, threads: int) -> CommunicationCost:
    """Return the cost of so many seconds on each of so many threads."""
    if not seconds:
        return CommunicationCost(latency)
    return CommunicationCost(latency, seconds, (CORES, link), (float(threads), 1.0))


def _parts(graph: Graph, alone: Bools, own: Longs, works: int) -> dict[str, Any]:
    """Return columns in which every op without communication is a part of its own.

    ``own`` are works of these ops; those of other parts are numbered from ``works`` on.
    """
    start = offsets(np.diff(graph.part_start) + alone)
    part = np.empty(start[-1], np.int32)
    tail = np.zeros(start[-1])
    first = start[:-1][alone]
    moved = np.ones(start[-1], np.bool_)
    moved[first] = False
    part[first], part[moved] = np.arange(len(own)), graph.part + len(own)
    tail[moved] = graph.part_tail
    part_work = np.append(own, works + np.arange(len(graph.part_work))).astype(np.int32)
    return {
        "part_start": start,
        "part": part,
        "part_tail": tail,
        "part_work": part_work,
        "work": part_work[part[start[:-1]]],
    }
