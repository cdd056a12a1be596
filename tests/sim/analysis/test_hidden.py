"""Hidden and exposed communication as frames, what sharing costs, what perfect overlap gains."""

from __future__ import annotations

import numpy as np
import pytest

from sim.analysis.contention import contention
from sim.analysis.exposed import explained, exposed
from sim.analysis.hidden import by_dimension, transfers
from sim.engine import simulate
from sim.graph import Builder, Communication, Compute, Fixed, Graph
from sim.machine import cluster
from sim.machine.hardware import CommunicationCost, Machine, ideal, table
from sim.runs.run import prepare
from sim.timeline import Timeline
from sim.whatif import perfect_overlap


def two_ranks() -> Graph:
    """Rank 0: kernel 0-4, reduce from 4 on; rank 1: kernel 0-6, reduce, and beside it 6-9.

    The reduce moves from 6 to 11: wholly exposed on rank 0 after 2 s of waiting, for 2 s on rank 1.
    """
    b = Builder()
    reduce = Communication("all_reduce", 8.0, (0, 1), "dp")
    one = b.add("kernel", 0, "compute", Fixed(4.0))
    two = b.add("kernel", 1, "compute", Fixed(6.0))
    b.join([b.add("reduce", rank, "dp", reduce, [k]) for rank, k in ((0, one), (1, two))])
    b.add("beside", 1, "compute", Fixed(3.0))
    return b.graph()


def test_each_transfer_worked_by_hand():
    graph = two_ranks()
    timeline = simulate(graph, ideal(graph, p2p=5.0))
    of = transfers(timeline)
    assert of["rank"].tolist() == [0, 1]
    assert of["waiting_s"].tolist() == [2.0, 0.0]
    assert of["moving_s"].tolist() == [5.0, 5.0]
    assert of["hidden_s"].tolist() == [0.0, 3.0]
    assert of["exposed_s"].tolist() == [5.0, 2.0]
    sums = by_dimension(of)
    assert sums["hidden_share"].tolist() == [0.0, 0.6]
    why = explained(timeline, of, most=1)
    (longest, *_) = exposed(timeline)
    assert why[["op", "sentence"]].to_numpy().tolist() == [[longest.op, longest.sentence]]


def test_exposed_seconds_are_those_between_kernels_instant_by_instant(small_job):
    """Each transfer cut wherever a kernel of its rank starts or ends, and each piece looked at."""
    _, graph, machine = prepare(small_job(dp=2, pp=2), cluster.load("dgx_a100", 4), fold=False)
    timeline = simulate(graph, machine)
    of = transfers(timeline)
    computes = np.array([isinstance(work, Compute) for work in graph.works])[graph.work]
    for row in of.itertuples():
        kernels = computes & (graph.rank == row.rank)
        start, end = timeline.start[kernels], timeline.end[kernels]
        low, high = timeline.start[row.op] + row.waiting_s, timeline.end[row.op]
        cuts = np.unique(np.clip([low, high, *start, *end], low, high))
        middle = (cuts[1:] + cuts[:-1]) / 2
        runs = ((start <= middle[:, None]) & (middle[:, None] < end)).any(axis=1)
        assert row.exposed_s == pytest.approx(np.diff(cuts)[~runs].sum(), abs=1e-12)
    found = {one.op: one.seconds for one in exposed(timeline)}
    assert len(found) > 10
    assert of.set_index("op")["exposed_s"].drop([*found]).max() <= 1e-12  # rounding


def test_perfect_overlap_gains_what_is_exposed_and_waited_for():
    """Without the 5 s of the reduce the step is 6 + 3 s instead of 11."""
    graph = two_ranks()
    of = perfect_overlap(graph, ideal(graph, p2p=5.0))
    assert of.to_numpy().tolist() == [["dp", 9.0, 2.0]]


def shared() -> tuple[Graph, Machine]:
    """A reduce that holds a quarter of the 4 SMs for 8 s beside a kernel of 3 s of arithmetic."""
    b = Builder()
    reduce = Communication("all_reduce", 8.0, (0, 1), "dp")
    b.join([b.add("reduce", 0, "dp", reduce)])
    b.add("gemm", 0, "compute", Compute("gemm", 1.0, 1.0))
    graph = b.graph()
    machine = table(
        graph.works,
        lambda _: (3.0, 0.0, 0.0),
        lambda _: CommunicationCost(8.0, sms=1),
        np.empty(0),
        4,
    )
    return graph, machine


def test_a_kernel_on_three_of_four_sms_loses_a_third():
    graph, machine = shared()
    of = contention(simulate(graph, machine), machine)
    assert of.to_numpy().tolist() == [[0, "compute gemm", 1, 3.0, 4.0, 1.0]]


def test_kernels_alone_lose_nothing(small_job):
    _, graph, machine = prepare(small_job(), cluster.load("dgx_a100", 1))
    of = contention(simulate(graph, machine), machine)
    assert of["lost_s"].sum() == 0
    assert of["kernels"].sum() == len(graph)


def test_nothing_at_all():
    graph = Builder().graph()
    empty = Timeline(graph, np.empty(0), np.empty(0))
    assert len(transfers(empty)) == len(by_dimension(transfers(empty))) == 0
    assert len(explained(empty, transfers(empty))) == 0
