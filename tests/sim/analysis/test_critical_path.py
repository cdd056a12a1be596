"""Path, slack and near-critical chains: each statement against a second simulation of the graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.critical_path import critical_path
from sim.analysis.near_critical import near_critical
from sim.analysis.path import by_cause, by_straggler, path
from sim.analysis.slack import slack
from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed, Graph
from sim.machine.hardware import ideal
from sim.timeline import Timeline

SECONDS = st.integers(0, 40).map(lambda k: k / 4)  # exact in binary: sums can be compared with ==
STREAMS = {"compute": "", "side": "", "host": "host", "tp": "tp", "dp": "dp"}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random kernels, host calls, waits, lags, tails, collectives and batched transfers."""
    b, count = Builder(), 0
    for _ in range(draw(st.integers(1, 14))):
        stream = draw(st.sampled_from(list(STREAMS)))
        dim, seconds = STREAMS[stream], draw(SECONDS)
        ranks = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
        work = Fixed(seconds, "communication", dim) if dim else Fixed(seconds)
        work = Fixed(seconds, "host") if dim == "host" else work
        meets = dim not in ("", "host")
        ops = []
        for rank in ranks if meets else ranks[:1]:
            ops.append(b.add("op", rank, stream, work, lag=draw(SECONDS)))
            for earlier in draw(st.lists(st.integers(0, count - 1), max_size=3)) if count else []:
                b.wait(ops[-1], earlier, draw(SECONDS))
        if meets and len(ops) == 3 and draw(st.booleans()):  # two parts meet in the middle one
            for pair in (ops[:2], ops[1:]):
                part = Fixed(draw(SECONDS), "communication", dim)
                b.join(pair, part, [draw(SECONDS), draw(SECONDS)])
        elif meets:
            b.join(ops, tails=[draw(SECONDS) for _ in ops])
        count += len(ops)
    return b.graph()


def run(graph: Graph) -> Timeline:
    return simulate(graph, ideal(graph))


def lengthened(graph: Graph, op: int, part: int, seconds: float) -> Graph:
    """The graph with an op, or the part that ends it, taking longer."""
    row = graph.part_work[part] if part >= 0 else graph.work[op]
    works = (*graph.works, graph.works[row]._replace(seconds=graph.works[row].seconds + seconds))
    work, part_work = graph.work.copy(), graph.part_work.copy()
    (part_work if part >= 0 else work)[part if part >= 0 else op] = len(works) - 1
    return replace(graph, works=works, work=work, part_work=part_work)


def delayed(timeline: Timeline, op: int, seconds: float) -> Graph:
    """The graph with one op starting later than it does: a lag behind what is before it."""
    graph, lag = timeline.graph, timeline.graph.lag.copy()
    mine = timeline.on(int(graph.rank[op]), graph.streams[graph.stream[op]])
    before = mine[mine < op]
    ready = timeline.end[before[-1]] if len(before) else 0.0
    lag[op] = timeline.start[op] + seconds - ready
    return replace(graph, lag=lag)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(graphs(), st.data())
def test_path_and_slack_say_what_a_second_simulation_finds(graph, data):
    """The path is as long as the step, and any op of it lengthens the step second by second."""
    timeline = run(graph)
    of = path(timeline)
    assert of["start"].iloc[0] == timeline.start.min()
    assert of["end"].iloc[-1] == timeline.end.max()
    assert (of["end"].to_numpy()[:-1] == of["start"].to_numpy()[1:]).all()
    assert of["seconds"].sum() == timeline.seconds == sum(by_cause(of).values())
    runs = of[~of["cause"].eq("lag") & (of["start"] == timeline.start[of["op"]])]
    if len(runs):
        piece = runs.iloc[data.draw(st.integers(0, len(runs) - 1))]
        longer = run(lengthened(graph, int(piece["op"]), int(piece["part"]), 2.5))
        assert longer.end.max() == timeline.end.max() + 2.5
    delaying_any_op_by_its_slack_changes_nothing(timeline, data)


def delaying_any_op_by_its_slack_changes_nothing(timeline, data):
    """A quarter of a second more moves the end by as much."""
    graph, of = timeline.graph, slack(timeline)
    op = data.draw(st.integers(0, len(graph) - 1))
    least = float(of.seconds[op])
    assert least >= 0
    assert run(delayed(timeline, op, least)).end.max() == timeline.end.max()
    assert run(delayed(timeline, op, least + 0.25)).end.max() == timeline.end.max() + 0.25


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_near_critical_chains_are_those_of_least_slack(graph):
    """Ascending; all ops of a chain that take time have its slack; those left have no less."""
    timeline = run(graph)
    of = slack(timeline)
    assert of.seconds[list(critical_path(timeline).ops)].max() == 0
    chains = near_critical(timeline, 3)
    assert all(a.slack <= b.slack for a, b in pairwise(chains))
    seen = {int(i) for i in np.flatnonzero(of.seconds == 0)}
    takes = {int(i) for i in np.flatnonzero(timeline.end > timeline.start)}
    for chain in chains:
        assert {float(of.seconds[i]) for i in takes & {*chain.ops}} == {chain.slack}
        assert not seen & {*chain.ops}
        assert chain.leaves < 0 or chain.leaves in seen
        assert chain.joins < 0 or chain.joins in seen
        seen |= {*chain.ops}
    rest = [float(of.seconds[i]) for i in takes - seen]
    if len(chains) < 3:
        assert rest == []
    elif rest:
        assert min(rest) >= chains[-1].slack


def launched() -> Graph:
    """The host takes 2 s a launch and each kernel starts 0.5 s after its own; 5 s, then 3 s."""
    b = Builder()
    for seconds in (5.0, 3.0):
        call = b.add("launch", 0, "host", Fixed(2.0, "host"))
        kernel = b.add("kernel", 0, "compute", Fixed(seconds))
        b.wait(kernel, call, 0.5)
    return b.graph()


def test_the_path_runs_through_the_host_and_its_launches():
    """launch 0-2, 0.5 s until the kernel runs 2.5-7.5, then the second 7.5-10.5 at once."""
    timeline = run(launched())
    assert by_cause(path(timeline)) == {"compute": 8.0, "launch": 2.5}
    assert slack(timeline).seconds.tolist() == [0.0, 0.0, 3.0, 0.0]
    (chain,) = near_critical(timeline)
    assert (chain.slack, chain.ops, chain.leaves, chain.joins) == (3.0, (2,), 0, 3)


def test_a_straggler_is_who_the_others_wait_for():
    """Four ranks compute 5, 4, 3 and 9 s and reduce for 2 s: half are there at 4 s, all at 9 s."""
    b = Builder()
    reduce = Communication("all_reduce", 8.0, (0, 1, 2, 3), "dp")
    members = []
    for rank, seconds in enumerate((5.0, 4.0, 3.0, 9.0)):
        kernel = b.add("kernel", rank, "compute", Fixed(seconds))
        members.append(b.add("reduce", rank, "dp", reduce, [kernel]))
    b.join(members)
    graph = b.graph()
    of = path(simulate(graph, ideal(graph, p2p=2.0)))
    assert by_cause(of) == {"straggler": 5.0, "compute": 4.0, "communication dp": 2.0}
    assert by_cause(of, stragglers=False) == {"compute": 9.0, "communication dp": 2.0}
    assert by_straggler(of) == {3: 5.0}


def test_a_recorded_gap_belongs_to_the_fixed_graph():
    """What starts 1.5 s after all that it waits for keeps that distance: no slack on the path."""
    b = Builder()
    first = b.add("a", 0, "compute", Fixed(2.0))
    b.add("b", 0, "compute", Fixed(4.0), [first])
    timeline = Timeline(b.graph(), np.array([1.0, 4.5]), np.array([3.0, 8.5]))
    assert slack(timeline).seconds.tolist() == [0.0, 0.0]
    assert by_cause(path(timeline)) == {"compute": 6.0, "lag": 1.5}


def test_slack_on_a_cluster_is_nearly_exact_where_kernels_are_hardly_slowed(small_job):
    """1F1B with messages beside kernels: 10 us over the slack move the step by 10 us, less what the
    kernels gain that are slowed less then: under a microsecond."""
    from sim.machine import cluster
    from sim.runs.run import prepare

    job = small_job(pp=4, microbatches=6)
    _, graph, machine = prepare(job, cluster.load("dgx_a100", 4))
    timeline = simulate(graph, machine)
    of = slack(timeline)
    rng = np.random.default_rng(0)
    for op in rng.choice(len(graph), 8, replace=False).tolist():
        for more in (0.0, 1e-5):
            again = simulate(delayed(timeline, op, of.seconds[op] + more), machine)
            moved = again.end.max() - timeline.end.max()
            assert moved == pytest.approx(more, abs=1e-6)


def test_tails_of_communication_of_unknown_seconds_are_no_slack():
    """m meets a from 0 to 2 s and c, who comes at 3 s, until 5; a itself ends 1 s late, at 3.

    A kernel behind m ends at 7 s: a could come 3 s later, when m would still end at 5.
    """
    b = Builder()
    message = Communication("p2p", 8.0, (0, 1), "pp")
    late = b.add("late", 2, "compute", Fixed(3.0))
    a, m = (b.add("send", rank, "pp", message) for rank in (0, 1))
    c = b.add("send", 2, "pp", message, [late])
    b.join([a, m], tails=[1.0, 0.0])
    b.join([m, c])
    b.add("kernel", 1, "compute", Fixed(2.0), [m])
    graph = b.graph()
    timeline = simulate(graph, ideal(graph, p2p=2.0))
    assert timeline.end.tolist() == [3.0, 3.0, 5.0, 5.0, 7.0]
    assert slack(timeline).seconds.tolist() == [0.0, 3.0, 3.0, 0.0, 0.0]


def test_recorded_times_that_contradict_the_graph_end_the_path():
    """Each of two ops waits for a peer that, by unaligned clocks, starts after it has ended."""
    b = Builder()
    a, c = (b.add("op", rank, "compute", Fixed(1.0)) for rank in (0, 1))
    b.wait(a, c)
    b.wait(c, a)
    timeline = Timeline(b.graph(), np.array([0.0, 2.0]), np.array([1.0, 3.0]))
    assert critical_path(timeline).ops == (0, 1)
    assert path(timeline)["seconds"].sum() == timeline.seconds


def test_the_path_is_drawn_where_it_runs():
    """A line under the kernel and one in the lane of the transfer, on the ranks that are drawn."""
    from sim import plots

    b = Builder()
    kernel = b.add("kernel", 0, "compute", Fixed(3.0))
    b.add("send", 0, "pp", Fixed(2.0, "communication", "pp"), [kernel])
    timeline = run(b.graph())
    axes = plots.timeline(timeline, path=path(timeline), unit="s").axes[0]
    lines = [c.get_segments() for c in axes.collections if c.get_zorder() == 4]
    along = [[tuple(point) for point in line] for line in lines[1]]
    assert [(one[0], two[0]) for one, two in along] == [(0.0, 3.0), (3.0, 5.0)]
    assert along[0][0][1] > along[1][0][1]


def test_nothing_at_all():
    empty = Timeline(Builder().graph(), np.empty(0), np.empty(0))
    assert len(path(empty)) == len(slack(empty).seconds) == len(near_critical(empty)) == 0
