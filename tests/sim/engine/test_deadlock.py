"""Orders that stop: the error names every stuck stream of one cycle, its op and its wait."""

from __future__ import annotations

import re

import pytest

from schedules import Step
from sim.builder.strategies.exchange import Policy
from sim.engine import DeadlockError, simulate
from sim.graph import Builder, Communication, Fixed
from sim.machine.hardware import ideal
from sim.runs.schedule_run import plan_of, run_plan

TIMES = {"F": 5.0, "I": 4.0, "W": 3.0}


def message(source: int, target: int) -> Communication:
    return Communication("p2p", 8.0, (source, target), "pp")


def follows(error: DeadlockError) -> None:
    """Each line waits for an op on the stream of the next line, the last for the first."""
    lines = str(error).splitlines()[1:]
    assert len(lines) == len(error.cycle) > 0
    for k, (rank, stream) in enumerate(error.cycle):
        assert lines[k].startswith(f"  rank {rank}, stream {stream}: ")
        to, by = error.cycle[(k + 1) % len(lines)]
        assert f"on rank {to}, stream {by}" in lines[k].partition("waits for")[2]


def test_backward_before_the_forward_that_it_needs() -> None:
    """Rank 0 wants the gradient of microbatch 1 before it has sent that microbatch on."""
    plan = plan_of("one_f_one_b", 2, 2, 1)
    plan[0] = [Step(0, "F", 0), Step(0, "B", 1), Step(0, "F", 1), Step(0, "B", 0)]
    with pytest.raises(DeadlockError, match=r"deadlock: \d+ streams are stuck") as stopped:
        run_plan(plan, TIMES)
    text = str(stopped.value)
    follows(stopped.value)
    assert re.search(r"rank 0, stream compute: B of microbatch 1 waits for recv_gradient", text)
    assert re.search(r"rank 1, stream compute: F of microbatch 1 waits for recv_activation", text)


@pytest.mark.parametrize("policy", ["direction", "pair", "batched"])
def test_stages_that_need_each_other_in_a_circle(policy: str) -> None:
    """A chunk's forward before that of the chunk it gets its input from. On a pair's one stream the
    receive stands behind the send of the rank's own later step: a circle in one rank already."""
    plan = [
        [Step(2, "F", 0), Step(0, "F", 0), Step(2, "B", 0), Step(0, "B", 0)],
        [Step(1, "F", 0), Step(3, "F", 0), Step(3, "B", 0), Step(1, "B", 0)],
    ]
    with pytest.raises(DeadlockError) as stopped:
        run_plan(plan, TIMES, Policy(policy))
    follows(stopped.value)
    ranks = {rank for rank, _ in stopped.value.cycle}
    assert ranks == ({0, 1} if policy != "pair" else {0})


def test_sends_that_block_each_other() -> None:
    """Both ranks send before they receive, on one stream: rendezvous never comes about."""
    b = Builder()
    first = {r: b.add(f"send_{r}", r, "pp", message(r, 1 - r)) for r in (0, 1)}
    then = {r: b.add(f"recv_{r}", r, "pp", message(1 - r, r), microbatch=6 + r) for r in (0, 1)}
    b.join([first[0], then[1]])
    b.join([first[1], then[0]])
    graph = b.graph()
    with pytest.raises(DeadlockError) as stopped:
        simulate(graph, ideal(graph))
    follows(stopped.value)
    text = str(stopped.value)
    assert "send_0 has started and waits for recv_1 of microbatch 7 on rank 1, stream pp" in text
    assert "send_1 has started and waits for recv_0 of microbatch 6 on rank 0, stream pp" in text


def test_events_in_a_circle_beside_work_that_ends() -> None:
    """Only what is stuck is named; a rank that could finish is not."""
    b = Builder()
    b.add("fine", 2, "compute", Fixed(5.0))
    one = b.add("one", 0, "compute", Fixed(4.0))
    two = b.add("two", 1, "compute", Fixed(3.0), waits=[one])
    b.wait(one, two)
    b.add("behind", 1, "compute", Fixed(3.0))
    graph = b.graph()
    with pytest.raises(DeadlockError, match="2 streams are stuck") as stopped:
        simulate(graph, ideal(graph))
    follows(stopped.value)
    assert sorted(stopped.value.cycle) == [(0, "compute"), (1, "compute")]
    assert "fine" not in str(stopped.value)


def test_an_op_behind_what_waits_for_it() -> None:
    """On one stream, the shortest circle: an op waits for one issued after it."""
    b = Builder()
    one = b.add("one", 3, "compute", Fixed(5.0))
    b.wait(one, b.add("two", 3, "compute", Fixed(4.0)))
    graph = b.graph()
    with pytest.raises(DeadlockError) as stopped:
        simulate(graph, ideal(graph))
    assert stopped.value.cycle == [(3, "compute")]
    assert "one waits for two on rank 3, stream compute" in str(stopped.value)


def test_a_message_that_nobody_receives_in_time() -> None:
    """No circle: the send waits for a receive that stands behind a stream which has stopped."""
    b = Builder()
    late = b.add("late", 1, "compute", Fixed(5.0))
    b.wait(late, b.add("later", 1, "compute", Fixed(4.0)))
    send = b.add("send", 0, "pp", message(0, 1))
    b.join([send, b.add("recv", 1, "pp", message(0, 1), waits=[late])])
    graph = b.graph()
    with pytest.raises(DeadlockError, match="3 streams are stuck") as stopped:
        simulate(graph, ideal(graph))
    assert stopped.value.cycle == [(1, "compute")]
