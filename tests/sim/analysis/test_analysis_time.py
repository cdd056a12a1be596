"""Breakdown, idle causes and critical path: brute force, networkx, cases worked by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedules
from sim.analysis.breakdown import breakdown, summary
from sim.analysis.critical_path import critical_path
from sim.analysis.idle import bubble, idle
from sim.engine import simulate
from sim.graph import Builder, Communication, Compute, Copy, Fixed, Graph
from sim.machine.hardware import ideal
from sim.timeline import Timeline, dimension

pytestmark = pytest.mark.slow

SECONDS = st.integers(0, 40).map(lambda k: k / 4)  # exact in binary: sums can be compared with ==
STREAMS = {"compute": "", "tp": "tp", "dp": "dp"}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random ops, waits, lags, tails and collectives; acyclic because all relations point back."""
    b, count = Builder(), 0
    begun: set[tuple[int, str]] = set()
    for _ in range(draw(st.integers(1, 12))):
        stream = draw(st.sampled_from(list(STREAMS)))
        ranks = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        dim, seconds = STREAMS[stream], draw(SECONDS)
        members = []
        for rank in ranks if dim else ranks[:1]:
            waits = draw(st.lists(st.integers(0, count - 1), max_size=3)) if count else []
            work = Fixed(seconds, "communication", dim) if dim else Fixed(seconds)
            lag = draw(SECONDS) if (rank, stream) in begun else 0.0
            begun.add((rank, stream))
            members.append((rank, work, waits, lag))
        ops = [b.add("op", r, stream, w, lag=lag) for r, w, _, lag in members]
        for op, (_, _, waits, _) in zip(ops, members, strict=True):
            for earlier in waits:
                b.wait(op, earlier, draw(SECONDS))
        if dim and len(ops) == 3 and draw(st.booleans()):  # a batched kernel: two parts meet in it
            for pair in (ops[:2], ops[1:]):
                work = Fixed(draw(SECONDS), "communication", dim)
                b.join(pair, work, [draw(SECONDS), draw(SECONDS)])
        elif dim:
            b.join(ops, tails=[draw(SECONDS) for _ in ops])
        count += len(ops)
    return b.graph()


def precedence(graph: Graph) -> nx.DiGraph:
    """Starts, meetings and ends as nodes; an edge weighs what passes between two of them."""
    dag = nx.DiGraph()
    for _, _, ops in graph.by_stream():
        for a, b in pairwise(ops):
            dag.add_edge(("end", int(a)), ("start", int(b)), weight=float(graph.lag[b]))
    for i in range(len(graph)):
        dag.add_node(("start", i))
        for k in range(graph.wait_start[i], graph.wait_start[i + 1]):
            edge = ("end", int(graph.wait_on[k])), ("start", i)
            weight = max(
                float(graph.wait_lag[k]), dag.get_edge_data(*edge, {"weight": 0})["weight"]
            )
            dag.add_edge(*edge, weight=weight)
        if not len(graph.parts(i)):
            dag.add_edge(("start", i), ("end", i), weight=graph.op(i).work.seconds)
        for k in range(graph.part_start[i], graph.part_start[i + 1]):
            part = int(graph.part[k])
            dag.add_edge(("start", i), ("meet", part), weight=0.0)
            seconds = graph.works[graph.part_work[part]].seconds
            dag.add_edge(("meet", part), ("end", i), weight=seconds + graph.part_tail[k])
    return dag


def times(dag: nx.DiGraph) -> dict[object, float]:
    """Every node as soon as all edges into it allow."""
    at: dict[object, float] = {}
    for node in nx.topological_sort(dag):
        edges = dag.in_edges(node, data="weight")
        at[node] = max((at[source] + weight for source, _, weight in edges), default=0.0)
    return at


def run(graph: Graph) -> Timeline:
    """When each op runs, by networkx."""
    at = times(precedence(graph))
    start, end = (np.array([at[of, i] for i in range(len(graph))]) for of in ("start", "end"))
    return Timeline(graph, start, end)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_critical_path_is_the_longest_path(graph):
    """Its seconds sum to the makespan, which is networkx's heaviest path; nothing goes missing."""
    timeline = simulate(graph, ideal(graph))
    path = critical_path(timeline)
    assert sum(path.seconds.values()) == timeline.seconds
    assert (timeline.end == run(graph).end).all()
    assert timeline.end.max() == nx.dag_longest_path_length(precedence(graph))
    tight = decisive(graph)
    for a, b in pairwise(path.ops):
        assert nx.has_path(tight, ("start", a), ("start", b))
    assert nx.has_path(tight, ("start", path.ops[-1]), ("end", int(np.argmax(timeline.end))))


def decisive(graph: Graph) -> nx.DiGraph:
    """The edges that made their target happen when it did."""
    dag, at = precedence(graph), times(precedence(graph))
    edges = [(a, b) for a, b, weight in dag.edges(data="weight") if at[a] + weight == at[b]]
    tight = nx.DiGraph(edges)
    tight.add_nodes_from(dag)
    return tight


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_shares_of_every_rank_equal_brute_force(graph):
    """Instant by instant: who runs, whose data moves, who began first."""
    timeline = run(graph)
    if not timeline.seconds:
        return
    of = breakdown(timeline)
    for row, rank in enumerate(of.ranks):
        expected = brute_force(timeline, rank)
        got = {f"exposed {d}": of.exposed[d][row] for d in of.exposed}
        got |= {f"total {d}": of.total[d][row] for d in of.total}
        got |= {f"waiting {d}": of.waiting[d][row] for d in of.waiting}
        got |= {f"moving {d}": of.moving[d][row] for d in of.moving}
        got |= {f"hidden {d}": of.hidden[d][row] for d in of.hidden}
        got |= {"compute": of.compute[row], "empty": of.empty[row]}
        got |= {"overlapped": of.overlapped[row]}
        assert {k: v for k, v in got.items() if v} == pytest.approx(expected, rel=1e-12)
    total = of.compute + sum(of.exposed.values()) + of.empty
    assert total == pytest.approx(timeline.seconds, rel=1e-12)


def moves_from(timeline: Timeline, i: int) -> float:
    """When data first moves for an op: all members of one of its parts have started."""
    graph = timeline.graph
    owner = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    begins = [timeline.start[owner[graph.part == part]].max() for part in graph.parts(i)]
    return float(min([*begins, timeline.end[i]])) if begins else float(timeline.start[i])


def brute_force(timeline: Timeline, rank: int) -> dict[str, float]:
    graph = timeline.graph
    ops = [i for i in range(len(graph)) if graph.rank[i] == rank]
    cuts = sorted({*timeline.start, *timeline.end, *(moves_from(timeline, i) for i in ops)})
    out: dict[str, float] = {}
    for a, b in pairwise(cuts):
        running = [i for i in ops if timeline.start[i] <= a and timeline.end[i] >= b]
        running = [i for i in running if timeline.start[i] < timeline.end[i]]
        dims = {i: dimension(graph.op(i).work) for i in running}
        moves = {i: moves_from(timeline, i) for i in running}
        ranked = {
            i: (0, moves[i], i) if moves[i] <= a else (1, timeline.start[i], i) for i in running
        }
        transfers = sorted((i for i in running if dims[i]), key=lambda i: ranked[i])
        computes = len(transfers) < len(running)
        keys = {f"total {dims[i]}" for i in transfers}
        keys |= {"compute"} if computes else set()
        keys |= {"overlapped"} if computes and transfers else set()
        keys |= {f"exposed {dims[transfers[0]]}"} if transfers and not computes else set()
        moved = {dims[i] for i in transfers if moves[i] <= a}
        keys |= {f"moving {d}" for d in moved}
        keys |= {f"hidden {d}" for d in moved if computes}
        keys |= {f"waiting {dims[i]}" for i in transfers if moves[i] > a}
        for key in keys or {"empty"}:
            out[key] = out.get(key, 0.0) + float(b - a)
    return out


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_causes_of_idling_sum_to_it(graph):
    """Intervals are disjoint, ordered, and all time in which the rank does not compute."""
    timeline = run(graph)
    of, shares = idle(timeline), breakdown(timeline)
    for row, rank in enumerate(of.ranks):
        mine = of.rank == rank
        start, end = of.start[mine], of.end[mine]
        assert (start < end).all()
        assert (end[:-1] <= start[1:]).all()
        assert (end - start).sum() == pytest.approx(
            timeline.seconds - shares.compute[row], abs=1e-9
        )
        by_cause = sum(seconds[row] for seconds in of.by_cause().values())
        assert by_cause == pytest.approx((end - start).sum(), rel=1e-12, abs=1e-12)


def two_ranks() -> Timeline:
    """Rank 0: F 0-5, send 5-7, all-reduce 7-13 (moves from 9), step 13-16; rank 1: recv 0-7
    (moves from 5), F 7-9, all-reduce 9-13, step 14-17, which lags by 1."""
    b = Builder()
    dp, pp = (
        Communication("all_reduce", 64.0, (0, 1), "dp"),
        Communication("p2p", 32.0, (0, 1), "pp"),
    )
    f0 = b.add("F", 0, "compute", Compute("gemm", 5.0, 1.0), phase="F")
    send = b.add("send", 0, "pp", pp, [f0])
    recv = b.add("recv", 1, "pp", pp)
    f1 = b.add("F", 1, "compute", Compute("gemm", 2.0, 1.0), [recv], phase="F")
    r0 = b.add("reduce", 0, "dp", dp, [send])
    r1 = b.add("reduce", 1, "dp", dp, [f1])
    b.add("step", 0, "compute", Compute("optimizer", 3.0, 1.0), [r0], phase="O")
    late = b.add("step", 1, "compute", Compute("optimizer", 3.0, 1.0), phase="O")
    b.wait(late, r1, lag=1.0)
    b.join([send, recv])
    b.join([r0, r1])
    start = np.array([0.0, 5.0, 0.0, 7.0, 7.0, 9.0, 13.0, 14.0])
    return Timeline(b.graph(), start, np.array([5.0, 7.0, 7.0, 9.0, 13.0, 13.0, 16.0, 17.0]))


def test_breakdown_worked_by_hand():
    of = breakdown(two_ranks())
    assert of.compute.tolist() == [8.0, 5.0]
    assert of.exposed["pp"].tolist() == [2.0, 7.0]
    assert of.exposed["dp"].tolist() == [6.0, 4.0]
    assert of.waiting["pp"].tolist() == [0.0, 5.0]
    assert of.exposed_waiting["pp"].tolist() == [0.0, 5.0]
    assert of.exposed_waiting["dp"].tolist() == [2.0, 0.0]
    assert of.waiting["dp"].tolist() == [2.0, 0.0]
    assert of.empty.tolist() == [1.0, 1.0]
    assert of.span.tolist() == [16.0, 17.0]


def test_means_count_the_ranks_folded_away():
    timeline = two_ranks()
    graph = replace(timeline.graph, stands_for={0: 3})
    of = breakdown(replace(timeline, graph=graph))
    assert summary(of)["compute"] == {"mean": (3 * 8.0 + 5.0) / 4, "max": 8.0}
    assert bubble(idle(replace(timeline, graph=graph))).by_cause_s["drain"] == 3 / 4


def test_idle_causes_worked_by_hand():
    of = idle(two_ranks())
    pieces = zip(of.rank, of.start, of.end, [of.causes[k] for k in of.cause], strict=True)
    assert list(pieces) == [
        (0, 5.0, 7.0, "exposed_pp"), (0, 7.0, 9.0, "waiting"), (0, 9.0, 13.0, "exposed_dp"),
        (0, 16.0, 17.0, "drain"), (1, 0.0, 5.0, "warm_up"), (1, 5.0, 7.0, "exposed_pp"),
        (1, 9.0, 13.0, "exposed_dp"), (1, 13.0, 14.0, "lag"),
    ]  # fmt: skip
    assert bubble(of).idle_share_of_step == pytest.approx((9 + 12) / 2 / 17)
    assert bubble(of).idle_over_ideal == pytest.approx((9 + 12) / (8 + 5))


def test_warm_up_and_drain_are_those_of_the_microbatches():
    """A cast at 0-1 and the optimizer at 12-15 are not what a pipeline warms up and drains for."""
    b = Builder()
    b.add("cast", 0, "compute", Fixed(1.0))
    b.add("F", 0, "compute", Fixed(4.0), microbatch=0, phase="F", lag=2.0)
    b.add("adam", 0, "compute", Fixed(3.0), phase="O", lag=5.0)
    causes = bubble(idle(run(b.graph()))).by_cause_s
    assert causes == {"warm_up": 2.0, "drain": 5.0}


def test_waiting_for_another_rank_without_a_transfer_is_a_dependency():
    """Rank 1 computes 0-2 and 5-9, and the second waits for rank 0 alone, also by way of an
    instantaneous transfer."""
    for hop in (False, True):
        b = Builder()
        first = b.add("a", 0, "compute", Fixed(5.0))
        b.add("b", 1, "compute", Fixed(2.0))
        if hop:
            first = b.add("recv", 1, "pp", Fixed(0.0, "communication", "pp"), [first])
        b.add("c", 1, "compute", Fixed(4.0), [first])
        timeline = run(b.graph())
        assert bubble(idle(timeline)).by_cause_s == {"drain": 4 / 2, "dependency": 3 / 2}


def test_critical_path_worked_by_hand():
    path = critical_path(two_ranks())
    assert path.seconds == {"gemm": 7.0, "dp": 4.0, "optimizer": 3.0, "pp": 2.0, "gap": 1.0}
    assert [two_ranks().graph.op(i).name for i in path.ops] == ["F", "send", "F", "reduce", "step"]


def test_of_a_batched_kernel_the_part_that_ended_last_decides():
    """m meets a from 0 to 5 and c from 2 to 8; a itself ends late, at 15, by its tail."""
    b = Builder()
    first = b.add("first", 2, "compute", Fixed(2.0))
    a = b.add("a", 0, "pp", Fixed(0.0, "communication", "pp"))
    m = b.add("m", 1, "pp", Fixed(0.0, "communication", "pp"))
    c = b.add("c", 2, "pp", Fixed(0.0, "communication", "pp"), [first])
    last = b.add("last", 1, "compute", Fixed(20.0), [m])
    b.join([a, m], Fixed(5.0, "communication", "pp"), [10.0, 0.0])
    b.join([m, c], Fixed(6.0, "communication", "pp"))
    assert critical_path(run(b.graph())).ops == (first, c, last)


def test_bubble_of_1f1b_is_the_published_one():
    """(p - 1) / m of the ideal time (PipeDream-flush), by warm-up, dependency and drain."""
    p, m, times = 3, 4, {"F": 5.0, "B": 7.0}
    b, done, orders = Builder(), {}, schedules.load("one_f_one_b")(p, m)
    while any(orders):  # issue whatever has its needs issued
        for rank, order in enumerate(orders):
            if not order:
                continue
            _, step, k = order[0]
            before = (rank - 1, "F", k) if step == "F" else (rank + 1, "B", k)
            if step == "B" and rank == p - 1:
                before = (rank, "F", k)
            if before in done or before[0] < 0:
                waits = [done[before]] if before in done else []
                work = Fixed(times[step])
                done[rank, step, k] = b.add(str(order.pop(0)), rank, "compute", work, waits)
    of = bubble(idle(run(b.graph())))
    assert of.idle_over_ideal == pytest.approx((p - 1) / m)
    assert of.by_cause_s == pytest.approx({"warm_up": 5.0, "drain": 7.0, "dependency": 12.0})


def test_copies_are_a_dimension_and_the_host_is_not_on_the_gpu():
    b = Builder()
    b.add("launch", 0, "host", Fixed(9.0))
    b.add("gemm", 0, "compute", Fixed(4.0))
    b.add("offload", 0, "d2h", Copy(8.0, "d2h"))
    of = breakdown(Timeline(b.graph(), np.zeros(3), np.array([9.0, 4.0, 6.0])))
    assert of.exposed["copy"].tolist() == [2.0]
    assert of.hidden["copy"].tolist() == [4.0]
    assert of.empty.tolist() == [3.0]


def test_nothing_at_all():
    empty = Timeline(Builder().graph(), np.empty(0), np.empty(0))
    assert critical_path(empty).ops == ()
    assert breakdown(empty).step == 0.0
    assert bubble(idle(empty)).by_cause_s == {}
