"""The engine: stream order, waits, parts, lags and tails, sharing on a GPU, deadlock."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine import DeadlockError, simulate
from sim.graph import Builder, Communication, Compute, Fixed, Graph
from sim.machine.hardware import CommunicationCost, Machine, ideal, table
from sim.timeline import Timeline

AR = Communication("all_reduce", 8.0, (0, 1), "dp")


def longest_path(graph: Graph) -> float:
    """The heaviest chain of waits, meetings and stream order, by networkx."""
    dag = nx.DiGraph()
    owners: dict[int, list[int]] = {}
    for i in range(len(graph)):
        for part in graph.parts(i).tolist():
            owners.setdefault(part, []).append(i)
    for i in range(len(graph)):
        seconds = getattr(graph.op(i).work, "seconds", 0.0)
        dag.add_edge(("start", i), ("end", i), weight=0.0 if len(graph.parts(i)) else seconds)
        dag.add_edges_from(
            (("end", j), ("start", i), {"weight": 0.0}) for j in graph.waits(i).tolist()
        )
    for part, members in owners.items():
        work = graph.works[graph.part_work[part]]
        for i in members:
            dag.add_edge(("start", i), ("meet", part), weight=0.0)
            dag.add_edge(("meet", part), ("end", i), weight=getattr(work, "seconds", 0.0))
    for _, _, ops in graph.by_stream():
        dag.add_edges_from((("end", i), ("start", j), {"weight": 0.0}) for i, j in pairwise(ops))
    return float(nx.dag_longest_path_length(dag))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random ops on random streams with random waits, and groups of one or two parts."""
    b = Builder()
    integers = st.integers
    for i in range(draw(integers(1, 25))):
        rank, stream = draw(integers(0, 3)), draw(st.sampled_from(["compute", "tp", "dp"]))
        waits = draw(st.lists(integers(0, i - 1), max_size=2)) if i else []
        b.add("op", rank, stream, Fixed(draw(st.sampled_from([5.0, 4.0, 3.0, 0.5, 0.0]))), waits)
        if draw(st.booleans()) and draw(st.booleans()):
            # a collective over ranks 0..n-1, issued at one point of the order: no deadlock
            for _ in range(draw(integers(1, 2))):
                work = Fixed(draw(st.sampled_from([7.0, 2.0])), "communication", "tp")
                b.join([b.add("meet", r, "group", work) for r in range(draw(integers(1, 4)))])
    return b.graph()


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(graphs())
def test_makespan_is_the_longest_path(graph: Graph) -> None:
    """networkx finds the same makespan on any graph in which nothing is shared."""
    assert simulate(graph, ideal_with_fixed_parts(graph)).seconds == longest_path(graph)


def ideal_with_fixed_parts(graph: Graph) -> Machine:
    """Fixed work takes its seconds, as a part as well."""
    return ideal(graph)


def test_ops_of_a_stream_run_in_issue_order() -> None:
    """5 then 4 then 3 on one stream, and a wait for the middle one on another."""
    b = Builder()
    ids = [b.add(n, 0, "compute", Fixed(s)) for n, s in zip("abc", (5.0, 4.0, 3.0), strict=True)]
    b.add("d", 0, "dp", Fixed(2.0), waits=[ids[1]])
    timeline = simulate(b.graph(), ideal(b.graph()))
    assert timeline.start.tolist() == [0, 5, 9, 9]
    assert timeline.end.tolist() == [5, 9, 12, 11]


def test_a_group_moves_when_the_last_member_has_started_and_ends_together() -> None:
    """The early member spins from its own start."""
    b = Builder()
    late = b.add("late", 1, "compute", Fixed(5.0))
    members = [b.add("ar", 0, "dp", AR), b.add("ar", 1, "dp", AR, waits=[late])]
    b.join(members)
    graph = b.graph()
    timeline = simulate(graph, ideal(graph, p2p=3.0))
    assert timeline.start.tolist() == [0, 0, 5]
    assert timeline.end.tolist() == [5, 8, 8]


def test_an_op_with_two_parts_ends_with_the_later() -> None:
    """A batched send and receive: rank 0 with rank 1 (ready at 5) and with rank 2 (ready at 4)."""
    b = Builder()
    one, two = b.add("w", 1, "compute", Fixed(5.0)), b.add("w", 2, "compute", Fixed(4.0))
    both = b.add("batched", 0, "pp", AR)
    a, c = b.add("p", 1, "pp", AR, waits=[one]), b.add("p", 2, "pp", AR, waits=[two])
    b.join([both, a])
    b.join([both, c])
    timeline = simulate(b.graph(), ideal(b.graph(), p2p=3.0))
    assert timeline.end.tolist()[2:] == [8, 8, 7]


def test_lags_and_tails_of_a_recording_are_kept() -> None:
    """Wait lag 0.5, stream lag 0.25, tails 0 and 0.125."""
    b = Builder()
    first = b.add("a", 0, "compute", Fixed(5.0))
    b.add("b", 0, "compute", Fixed(4.0), lag=0.25)
    late = b.add("c", 1, "compute", Fixed(3.0))
    b.wait(late, first, lag=0.5)
    members = [b.add("ar", r, "tp", Fixed(2.0), waits=[late]) for r in (0, 1)]
    b.join(members, tails=[0.0, 0.125])
    timeline = simulate(b.graph(), ideal(b.graph()))
    assert timeline.start.tolist() == [0, 5.25, 5.5, 8.5, 8.5]
    assert timeline.end.tolist() == [5, 9.25, 8.5, 10.5, 10.625]


def test_a_deadlock_names_the_cycle() -> None:
    """Two ranks that each send before they receive, under rendezvous."""
    b = Builder()
    s01, r10 = b.add("send 0F0", 0, "pair", AR), b.add("recv 1B0", 0, "pair", AR)
    s10, r01 = b.add("send 1B0", 1, "pair", AR), b.add("recv 0F0", 1, "pair", AR)
    b.join([s01, r01])
    b.join([s10, r10])
    with pytest.raises(DeadlockError) as caught:
        simulate(b.graph(), ideal(b.graph()))
    text = str(caught.value)
    assert "rank 0, stream pair: send 0F0 has started and waits for recv 0F0 on rank 1" in text
    assert "rank 1, stream pair: send 1B0 has started and waits for recv 1B0 on rank 0" in text


def test_a_wait_for_a_later_op_of_the_same_stream_is_a_deadlock() -> None:
    b = Builder()
    first = b.add("a", 0, "compute", Fixed(5.0))
    b.wait(first, b.add("b", 0, "compute", Fixed(4.0)))
    with pytest.raises(DeadlockError, match="a waits for b on rank 0"):
        simulate(b.graph(), ideal(b.graph()))


KERNEL = Compute("gemm", 6.0, 0.0)  # 6 s of arithmetic on the machine below
STREAMING = Compute("norm", 0.0, 4.0)  # 4 s of memory traffic


def half_machine(graph: Graph, latency: float = 0.0) -> Machine:
    """Communication: 50 of 100 SMs from its start, half of HBM while it moves, 3 s of moving."""

    def kernel(work: object) -> tuple[float, float, float]:
        match work:
            case Compute(flops=flops, bytes=size):
                return (flops, size, 0.0)
            case Fixed(seconds=seconds):
                return (0.0, 0.0, seconds)
        raise AssertionError(work)

    load = CommunicationCost(latency, size=3.0, links=(0,), coefficients=(1.0,), sms=50, hbm=0.5)
    return table(graph.works, kernel, lambda _: load, np.array([1.0]), gpu_sms=100)


def test_arithmetic_runs_at_the_share_of_sms_that_communication_leaves() -> None:
    """Alone 2 s (a third), at half speed for 3 s (a quarter), alone for the rest: 2 + 3 + 2.5."""
    b = Builder()
    b.add("gemm", 0, "compute", KERNEL)
    delay = b.add("delay", 1, "compute", Fixed(2.0))
    b.join([b.add("ar", 0, "dp", AR, waits=[delay])])
    timeline = simulate(b.graph(), half_machine(b.graph()))
    assert timeline.end.tolist() == pytest.approx([7.5, 2.0, 5.0], rel=1e-15)


def test_sms_are_held_while_waiting_but_memory_only_while_moving() -> None:
    """Rank 0 waits 5 s in the collective: arithmetic is halved, memory traffic is not."""
    for work, expected in ((KERNEL, 5 + 3 + (6 - 4)), (STREAMING, 4.0)):
        b = Builder()
        b.add("kernel", 0, "compute", work)
        late = b.add("late", 1, "host", Fixed(5.0))
        b.join([b.add("ar", 0, "dp", AR), b.add("ar", 1, "dp", AR, waits=[late])])
        end = simulate(b.graph(), half_machine(b.graph())).end[0]
        assert end == pytest.approx(expected, rel=1e-15)


def test_memory_traffic_is_halved_while_data_moves_and_not_during_the_latency() -> None:
    """1 s of latency at full speed, 3 s of moving at half speed, the last 1.5 s alone."""
    b = Builder()
    b.add("norm", 0, "compute", STREAMING)
    b.join([b.add("ar", 0, "dp", AR)])
    timeline = simulate(b.graph(), half_machine(b.graph(), latency=1.0))
    assert timeline.end.tolist() == pytest.approx([5.5, 4.0], rel=1e-15)


def test_two_kernels_share_a_gpu_evenly() -> None:
    """6 s and 4 s of arithmetic side by side: the short one ends at 8, then the other alone."""
    b = Builder()
    b.add("a", 0, "compute", KERNEL)
    b.add("b", 0, "side", Compute("gemm", 4.0, 0.0))
    assert simulate(b.graph(), half_machine(b.graph())).end.tolist() == [10.0, 8.0]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Graph, Graph]:
    """A chain of kernels beside communication; and the same with every kernel watched."""
    kernels = draw(st.lists(st.sampled_from([KERNEL, STREAMING, Fixed(1.25)]), min_size=1))
    delays = draw(st.lists(st.sampled_from([0.7, 2.0, 3.5]), min_size=1, max_size=5))
    out = []
    for watched in (False, True):
        b = Builder()
        for k in kernels:
            i = b.add("k", 0, "compute", k)
            if watched:
                b.add("watch", 0, "watch", Fixed(0.0), waits=[i])
        for d in delays:
            wait = b.add("delay", 1, "host", Fixed(d))
            b.join([b.add("ar", 0, "dp", AR, waits=[wait])])
        out.append(b.graph())
    return out[0], out[1]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(mixtures())
def test_a_fused_segment_ends_where_single_kernels_do_to_the_bit(pair: tuple[Graph, Graph]) -> None:
    """A wait on every kernel takes the segment apart; no time changes."""
    fused, single = (simulate(g, half_machine(g, latency=0.3)) for g in pair)
    assert ends(fused, "k") == ends(single, "k")
    assert ends(fused, "ar") == ends(single, "ar")


def ends(timeline: Timeline, name: str) -> list[float]:
    frame = timeline.to_pandas()
    return frame[frame.name == name].end.tolist()


def test_links_are_shared_and_given_back() -> None:
    """Two flows of 3 B on one link of 1 B/s; the second starts at 2: rates 1, 1/2, 1/2, 1."""
    b = Builder()
    delay = b.add("delay", 2, "host", Fixed(2.0))
    one, two = (AR._replace(ranks=pair) for pair in ((0, 1), (2, 3)))
    b.join([b.add("one", 0, "dp", one)])
    b.join([b.add("two", 2, "dp", two, waits=[delay])])
    timeline = simulate(b.graph(), half_machine(b.graph()))
    assert timeline.end.tolist() == pytest.approx([2.0, 4.0, 6.0], rel=1e-15)


def test_simgrid_runs_the_same_dag_in_the_same_time(shared) -> None:  # type: ignore[no-untyped-def]
    """1F1B graphs with tensor-parallel communication, run by SimGrid (see each file's note)."""
    for path in sorted((shared / "oracles").glob("dag_*.json")):
        data = json.loads(path.read_text())
        b = Builder()
        for op in data["ops"]:
            b.add("op", 0, f"stream {op['stream']}", Fixed(op["dur_ns"] * 1e-9), op["deps"])
        timeline = simulate(b.graph(), ideal(b.graph()))
        assert timeline.end == pytest.approx(np.array(data["finish_s"]), rel=1e-8)


def test_two_runs_are_equal_to_the_bit() -> None:
    b = Builder()
    for r in range(4):
        b.add("k", r, "compute", KERNEL)
        b.join([b.add("ar", r, "dp", AR._replace(ranks=(r, r + 1)))])
    graph = b.graph()
    one, two = (simulate(graph, half_machine(graph)) for _ in range(2))
    assert one.end.tobytes() == two.end.tobytes()
    slower = replace(half_machine(graph), capacity=np.array([0.5]))
    assert simulate(graph, slower).seconds > one.seconds


def test_the_lag_of_a_streams_first_op_counts_from_the_beginning() -> None:
    """With and without a wait: whichever is later."""
    b = Builder()
    first = b.add("a", 0, "compute", Fixed(2.0), lag=1.5)
    b.add("b", 1, "compute", Fixed(2.0), waits=[first], lag=0.5)
    b.add("c", 2, "compute", Fixed(2.0), waits=[first], lag=5.0)
    assert simulate(b.graph(), ideal(b.graph())).start.tolist() == [1.5, 3.5, 5.0]
