"""Longest paths: the engine's times, for any seconds, without the engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.longest import Paths, Seconds, taken
from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph
from sim.machine.hardware import ideal

SECONDS = st.sampled_from([5.0, 4.0, 3.0, 0.5, 0.0])
LAGS = st.sampled_from([0.0, 0.0, 0.25, 7.0])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random ops, waits, lags and communications of one or two parts, with tails."""
    b = Builder()
    for i in range(draw(st.integers(1, 20))):
        rank, stream = draw(st.integers(0, 2)), draw(st.sampled_from(["compute", "dp"]))
        op = b.add("op", rank, stream, Fixed(draw(SECONDS)), lag=draw(LAGS))
        for earlier in draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []:
            b.wait(op, earlier, draw(LAGS))
        if draw(st.booleans()):
            work = Fixed(draw(SECONDS), "communication", "tp")
            members = [b.add("meet", r, "group", work) for r in range(draw(st.integers(1, 3)))]
            for _ in range(draw(st.integers(1, 2))):
                b.join(members, Fixed(draw(SECONDS), "communication", "tp"),
                       [draw(LAGS) for _ in members])  # fmt: skip
    return b.graph()


def seconds_of(graph: Graph) -> Seconds:
    works = np.array([work.seconds for work in graph.works])
    return Seconds(works[graph.work], works[graph.part_work[graph.part]])


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(graphs())
def test_as_the_engine(graph: Graph) -> None:
    expected = simulate(graph, ideal(graph))
    found = Paths(graph).run(seconds_of(graph))
    assert found.start.tolist() == expected.start.tolist()
    assert found.end.tolist() == expected.end.tolist()


def test_a_part_takes_what_its_last_member_took() -> None:
    """Rank 1 comes 4 s late; both end at 7 s, so the transfer took 3 s, and alone it takes 3 s."""
    b = Builder()
    b.add("f", 1, "compute", Fixed(4.0))
    send = b.add("send", 0, "pp", Fixed(3.0, "communication", "pp"))
    b.join([send, b.add("recv", 1, "pp", Fixed(3.0, "communication", "pp"), waits=[0])])
    timeline = simulate(b.graph(), ideal(b.graph()))
    assert (timeline.end - timeline.start).tolist() == [4, 7, 3]
    assert taken(timeline).member.tolist() == [3, 3]


def test_steps_apart_begin_at_zero() -> None:
    b = Builder()
    for step in range(2):
        b.add("f", 0, "compute", Fixed(5.0), step=step, lag=1.0)
        b.add("b", 0, "compute", Fixed(7.0), step=step)
    graph = b.graph()
    assert Paths(graph).run(seconds_of(graph)).end.tolist() == [6, 13, 19, 26]
    assert Paths(graph, apart=True).run(seconds_of(graph)).end.tolist() == [6, 13, 6, 13]


def test_a_circle_is_refused() -> None:
    b = Builder()
    b.add("a", 0, "x", Fixed(1.0))
    b.add("b", 0, "y", Fixed(1.0), waits=[0])
    b.wait(0, 1)
    with pytest.raises(ValueError, match="wait for each other in a circle"):
        Paths(b.graph())
