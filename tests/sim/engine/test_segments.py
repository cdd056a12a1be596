"""Cutting streams into segments, and what is proven never to meet, change no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.strategies.exchange import Policy
from sim.engine import simulate
from sim.engine.segments import segments
from sim.engine.uses import uses
from sim.graph import Builder, Communication, Fixed, Graph
from sim.machine import cluster as clusters
from sim.machine.hardware import Machine, ideal
from sim.runs.run import prepare
from sim.timeline import Timeline

Make = Callable[..., Job]
CASES = [
    {"tp": 2, "pp": 2, "dp": 2},
    {"tp": 4, "dp": 2, "sp": True, "zero": 1, "overlap_param_gather": True},
    {"tp": 4, "pp": 2, "sp": True, "tp_overlap": True, "recompute": "full"},
    {"tp": 2, "pp": 4, "chunks": 2, "policy": Policy("batched", paired=True)},
    {"pp": 4, "dp": 2, "policy": Policy("pair", ahead=1), "micro_batch": 16, "sequence": 256},
]


def built(job: Job, fold: bool) -> tuple[Graph, Machine]:
    _, graph, machine = prepare(job, clusters.load("dgx_h100", 8), fold)
    return graph, machine


def watched(graph: Graph, machine: Machine) -> tuple[Graph, Machine]:
    """The graph, and on another rank an op of no duration behind every op: all are cut apart."""
    n = len(graph)

    def grown(column: np.ndarray, value: int) -> np.ndarray:
        return np.append(column, np.full(n, value)).astype(column.dtype)

    ends = {
        key: np.append(column, np.full(n, column[-1])).astype(column.dtype)
        for key, column in vars(graph).items()
        if key in ("part_start", "memory_start")
    }
    cells = {
        "name": 0, "work": len(graph.works), "stream": len(graph.streams), "stage": -1,
        "microbatch": -1, "layer": -1, "phase": 0, "rank": int(graph.rank.max()) + 1,
    }  # fmt: skip
    columns = {key: grown(getattr(graph, key), value) for key, value in cells.items()}
    waits = np.arange(1, n + 1) + graph.wait_start[-1]
    out = replace(
        graph,
        **columns,
        **ends,
        works=(*graph.works, Fixed(0.0)),
        streams=(*graph.streams, "watch"),
        lag=np.zeros(2 * n),
        wait_start=np.append(graph.wait_start, waits).astype(np.int32),
        wait_on=np.append(graph.wait_on, np.arange(n)).astype(np.int32),
        wait_lag=np.zeros(len(graph.wait_on) + n),
    )
    priced = ("arithmetic", "memory", "fixed", "latency", "size", "speed", "sms", "hbm")
    prices = {
        key: np.append(getattr(machine, key), 0).astype(getattr(machine, key).dtype)
        for key in priced
    }
    return out, replace(
        machine, **prices, link_start=np.append(machine.link_start, machine.link_start[-1])
    )


@pytest.mark.slow
@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuts_change_no_time(small_job: Make, case: dict[str, object], fold: bool) -> None:
    """With every op a segment of its own all start and end when they did, to rounding."""
    graph, machine = built(small_job(**case), fold)
    one, other = simulate(graph, machine), simulate(*watched(graph, machine))
    n = len(graph)
    np.testing.assert_allclose(other.start[:n], one.start, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(other.end[:n], one.end, rtol=1e-9, atol=1e-15)


def members(graph: Graph, done: Timeline) -> dict[int, tuple[float, float]]:
    """Of each part, from when all its ops have started until the first has ended."""
    op = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    start, end = np.full(len(graph.part_work), -np.inf), np.full(len(graph.part_work), np.inf)
    np.maximum.at(start, graph.part, done.start[op])
    np.minimum.at(end, graph.part, done.end[op])
    return {k: (a, b) for k, (a, b) in enumerate(zip(start.tolist(), end.tolist(), strict=True))}


def overlap(spans: list[tuple[float, float]]) -> bool:
    spans = sorted(spans)
    return any(b[0] < a[1] - 1e-12 for a, b in pairwise(spans))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_enters_no_solver_never_meets_anything(
    small_job: Make, case: dict[str, object]
) -> None:
    """In the timeline itself: parts of works said to be alone on a link never overlap on it, and
    where a communication is said to be beside no kernel, none runs meanwhile."""
    graph, machine = built(small_job(**case), fold=False)
    facts, done = uses(graph, machine), simulate(graph, machine)
    spans = members(graph, done)
    on: dict[int, list[int]] = {}
    for part, work in enumerate(graph.part_work.tolist()):
        for link in machine.link[machine.link_start[work] : machine.link_start[work + 1]].tolist():
            on.setdefault(link, []).append(part)
    for parts in on.values():
        alone = [k for k in parts if not facts.on_links[graph.part_work[k]]]
        shared = [k for k in parts if facts.on_links[graph.part_work[k]]]
        assert not overlap([spans[k] for k in alone])
        for k in alone:
            assert not any(
                spans[s][0] < spans[k][1] - 1e-12 and spans[k][0] < spans[s][1] - 1e-12
                for s in shared
            )
    is_part = np.diff(graph.part_start) > 0
    heavy = np.array(
        [any(machine.sms[graph.part_work[k]] for k in graph.parts(i)) for i in range(len(graph))]
    )
    felt = (machine.arithmetic + machine.memory > 0)[graph.work] & ~is_part
    for rank in graph.ranks().tolist():
        mine = graph.rank == rank
        quiet, kernels = (
            np.flatnonzero(mine & is_part & heavy & ~facts.beside),
            np.flatnonzero(mine & felt),
        )
        starts, ends = done.start[kernels], done.end[kernels]
        for i in quiet.tolist():
            assert not ((starts < done.end[i] - 1e-12) & (ends > done.start[i] + 1e-12)).any()


def test_segments_of_a_graph_worked_by_hand() -> None:
    """a b c | d e on a stream, where d waits for f of another and g waits for b: cut behind b,
    before d; a message of two ranks is by itself."""
    b = Builder()
    a = [b.add(name, 0, "compute", Fixed(1.0)) for name in "abc"]
    other = b.add("f", 0, "copy", Fixed(1.0))
    b.add("d", 0, "compute", Fixed(1.0), waits=[other, a[0]])
    b.add("e", 0, "compute", Fixed(1.0))
    b.add("g", 0, "copy", Fixed(1.0), waits=[a[1]])
    work = Communication("p2p", 8.0, (0, 1), "pp")
    b.join([b.add("send", 0, "pp", work), b.add("recv", 1, "pp", work)])
    graph = b.graph()
    segs = segments(graph, uses(graph, ideal(graph)))
    cut = [
        "".join(graph.op(i).name[0] for i in segs.order[x:y])
        for x, y in pairwise(segs.first.tolist())
    ]
    assert sorted(cut) == ["ab", "c", "de", "f", "g", "r", "s"]
    needs = {cut[s]: int(segs.needs[s]) for s in range(len(segs))}
    assert needs == {"ab": 0, "c": 1, "de": 2, "f": 0, "g": 2, "s": 0, "r": 0}
    done = simulate(graph, ideal(graph))
    assert done.end.tolist() == [1.0, 2.0, 3.0, 1.0, 4.0, 5.0, 3.0, 0.0, 0.0]
