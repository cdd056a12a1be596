"""Memory without time: where order alone decides, no duration changes a peak."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph, Memory
from sim.machine.hardware import ideal
from sim.memory.curve import peaks
from sim.memory.untimed import untimed
from sim.timeline import Timeline

STREAMS = ("compute", "dp", "tp")


class Drawn(NamedTuple):
    """An op of a drawn graph."""

    rank: int
    stream: str
    seconds: float
    waits: list[int]  # how many ops before
    takes: list[float]  # at its start
    gives: list[float]  # at its end


def graph_of(ops: list[Drawn]) -> Graph:
    b = Builder()
    for i, op in enumerate(ops):
        memory = [Memory("a", size, "start") for size in op.takes]
        memory += [Memory("b", size, "end") for size in op.gives]
        waits = sorted({i - back for back in op.waits if back <= i})
        b.add("op", op.rank, op.stream, Fixed(op.seconds), waits, memory=memory)
    return b.graph()


def simulated(graph: Graph) -> Timeline:
    return simulate(graph, ideal(graph))


def collective(waits: bool) -> Graph:
    """A kernel of 5 s and 6 B, beside it a reduction that has 7 B; a kernel of 8 B behind it."""
    b = Builder()
    first = b.add("first", 0, "compute", Fixed(1.0))
    beside = Memory("sums", 7.0, "start"), Memory("sums", -7.0, "end")
    reduced = b.add("reduce", 0, "dp", Fixed(3.0), [first], memory=beside)
    own = Memory("scratch", 8.0, "start"), Memory("scratch", -8.0, "end")
    b.add("between", 0, "compute", Fixed(5.0))
    b.add("last", 0, "compute", Fixed(1.0), [reduced] if waits else [], memory=own)
    return b.graph()


def test_what_is_awaited_needs_no_time() -> None:
    timeline = untimed(collective(waits=True))
    assert timeline is not None
    assert peaks(timeline)[0].peak_bytes == 8.0
    assert untimed(collective(waits=False)) is None  # 15 if the reduction takes over 5 s


def test_an_op_that_takes_no_time_needs_its_memory_all_the_same() -> None:
    """5 B that stay, and for no time 7 B: 12; then 5 and 6."""
    keeps = Drawn(0, "compute", 2.0, [], [5.0], [])
    moment = Drawn(0, "compute", 0.0, [], [7.0], [-7.0])
    follows = Drawn(0, "compute", 3.0, [], [6.0], [-6.0])
    for graph in (graph_of([keeps, moment, follows]), graph_of([keeps, moment, moment])):
        (peak,) = peaks(simulated(graph))
        assert (peak.peak_bytes, peak.by_category) == (12.0, {"a": 12.0})


SIZES = st.lists(st.sampled_from([3.0, 4.0, 5.0]), max_size=2)
OPS = st.lists(
    st.builds(
        Drawn,
        rank=st.sampled_from([0, 0, 1]),
        stream=st.sampled_from(STREAMS),
        seconds=st.sampled_from([0.0, 3.0, 4.0, 5.0]),
        waits=st.lists(st.integers(1, 6), max_size=3),
        takes=st.one_of(st.just([]), SIZES),
        gives=st.one_of(st.just([]), SIZES.map(lambda sizes: [-size for size in sizes])),
    ),
    min_size=2,
    max_size=12,
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(ops=OPS)
def test_no_duration_changes_a_peak_that_needs_none(ops: list[Drawn]) -> None:
    graph = graph_of(ops)
    found = untimed(graph)
    event("by order alone" if found else "by time")
    assert (found is not None) == awaited(graph)
    if found is not None:
        assert in_order(graph)
        said, ran = peaks(found), peaks(simulated(graph))
        assert [(p.rank, p.peak_bytes) for p in said] == [(p.rank, p.peak_bytes) for p in ran]
        assert [p.by_category for p in said] == [p.by_category for p in ran]


def changing(graph: Graph) -> list[tuple[int, int]]:
    """Ops that change memory, each with the next of its rank that does."""
    own = [np.flatnonzero((graph.rank == r) & (np.diff(graph.memory_start) > 0)) for r in (0, 1)]
    return [pair for ops in own for pair in pairwise(ops.tolist())]


def awaited(graph: Graph) -> bool:
    """The same rule, looked up op by op."""

    def waits(a: int, b: int) -> bool:
        same = (graph.rank == graph.rank[b]) & (graph.stream == graph.stream[b])
        before = [op for op in np.flatnonzero(same).tolist() if op <= b]
        behind = (graph.rank == graph.rank[a]) & (graph.stream == graph.stream[a])
        return any(behind[w] and w >= a for op in before for w in graph.waits(op).tolist())

    pairs = [(a, b) for a, b in changing(graph) if graph.stream[a] != graph.stream[b]]
    return all(waits(a, b) for a, b in pairs)


def in_order(graph: Graph) -> bool:
    """Whether networkx finds a way of waits and streams from each change to the next."""
    way: nx.DiGraph[int] = nx.DiGraph()
    way.add_nodes_from(range(len(graph)))
    way.add_edges_from((w, i) for i in range(len(graph)) for w in graph.waits(i).tolist())
    for _, _, ops in graph.by_stream():
        way.add_edges_from(pairwise(ops.tolist()))
    return all(nx.has_path(way, a, b) for a, b in changing(graph))
