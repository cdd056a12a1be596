"""What runs at one instant on one link or one GPU shares it, whatever op and stream it is of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest

from sim import run
from sim.engine import simulate
from sim.engine.clock import Clock, Due, no_garbage
from sim.engine.run import Run
from sim.engine.uses import uses
from sim.graph import Builder, Communication, Compute, Fixed, Graph, Work
from sim.machine.hardware import CommunicationCost, Machine, table
from tests.sim.engine.naive import times
from tests.sim.engine.test_brute_force import drawn

KERNEL, STREAMING = Compute("gemm", 6.0, 0.0), Compute("norm", 0.0, 4.0)  # seconds alone
MESSAGE = Communication("p2p", 8.0, (0, 1), "pp")
OTHER = Communication("p2p", 9.0, (0, 1), "pp")


def priced(graph: Graph, **traffic: object) -> Machine:
    """Communication moves 1 B over one link of 1 B/s after 0.15 s, unless said otherwise."""

    def kernel(work: Work) -> tuple[float, float, float]:
        match work:
            case Compute(flops=flops, bytes=size):
                return (flops, size, 0.0)
            case Fixed(seconds=seconds):
                return (0.0, 0.0, seconds)
        raise AssertionError(work)

    load = {"latency": 0.15, "size": 1.0, "links": (0,), "coefficients": (1.0,)} | traffic
    return table(
        graph.works, kernel, lambda _: CommunicationCost(**load), np.array([1.0]), gpu_sms=100
    )


@pytest.mark.parametrize("second", [MESSAGE, OTHER], ids=["one work", "two works"])
def test_two_parts_of_one_op_share_a_link(second: Communication) -> None:
    """A batch of two messages between the same two ranks: 0.15 s, then 2 B at 1 B/s."""
    b = Builder()
    ops = [b.add("batch", rank, "pp", MESSAGE) for rank in (0, 1)]
    b.join(ops)
    b.join(ops, second)
    assert simulate(b.graph(), priced(b.graph())).end.tolist() == [2.15, 2.15]


def test_parts_of_one_op_with_different_peers_share_a_link() -> None:
    """Rank 1 comes 1 s late: both messages move alone, one behind the other's latency.

    Rank 2's moves from 0.15 to 1.15, rank 1's from 1.15; 0.5 s earlier they share for half a
    second, in which each moves 0.25 B.
    """
    for late, first, second in ((1.0, 1.15, 2.15), (0.5, 1.65, 2.15)):
        b = Builder()
        delay = b.add("late", 1, "host", Fixed(late))
        both = b.add("batch", 0, "pp", MESSAGE)
        b.join([both, b.add("recv", 1, "pp", MESSAGE, waits=[delay])])
        b.join([both, b.add("recv", 2, "pp", OTHER)], OTHER)
        end = simulate(b.graph(), priced(b.graph())).end
        assert end[[3, 2, 1]].tolist() == pytest.approx([first, second, second], rel=1e-15)


@pytest.mark.parametrize("links", [(), (0,)], ids=["alone", "on links"])
def test_a_transfer_without_time_gives_its_memory_bandwidth_back(links: tuple[int, ...]) -> None:
    """0 B, or so few late in a run that begin and end are one float: then kernels run as alone."""
    for late, size in ((1.0, 0.0), (2.0**20, 1e-12)):
        b = Builder()
        delay = b.add("late", 1, "host", Fixed(late))
        comm = b.add("comm", 0, "dp", MESSAGE, waits=[delay])
        b.join([comm])
        if links:  # another stream may use the link, so that the solver sees both
            b.join([b.add("other", 2, "dp", MESSAGE, waits=[comm, delay])])
            b.join([b.add("other", 3, "dp", MESSAGE, waits=[comm])])
        b.add("wait", 0, "compute", Fixed(0.0), waits=[delay])
        kernel = b.add("norm", 0, "compute", STREAMING)
        machine = priced(b.graph(), latency=0.0, size=size, hbm=0.5)
        timeline = simulate(b.graph(), machine)
        assert timeline.end[comm] == late
        assert timeline.end[kernel] == late + 4.0


def test_a_kernel_that_starts_while_data_moves_has_what_is_left_of_memory() -> None:
    """From 0.5 s at half speed to its end, beside 10 s of data that take no SMs."""
    b = Builder()
    delay = b.add("late", 1, "host", Fixed(0.5))
    b.join([b.add("comm", 0, "dp", MESSAGE)])
    kernel = b.add("norm", 0, "compute", STREAMING, waits=[delay])
    end = simulate(b.graph(), priced(b.graph(), hbm=0.5, size=10.0)).end[kernel]
    assert end == 8.5


def test_kernels_of_known_duration_slow_those_of_another_stream() -> None:
    """3 s of a recorded kernel beside 6 s of arithmetic: the first 1.5 s of it take 3 s."""
    b = Builder()
    b.add("recorded", 0, "side", Fixed(3.0))
    b.add("gemm", 0, "compute", KERNEL)
    assert simulate(b.graph(), priced(b.graph())).end.tolist() == [3.0, 7.5]


def test_a_copy_between_kernels_is_nobodys_neighbour() -> None:
    """On the stream of 1 s, a copy of 2 s, 1 s of kernels: the others are halved for 2 s in all."""
    b = Builder()
    for work in (Fixed(1.0), Fixed(2.0, "copy"), Fixed(1.0)):
        b.add("op", 0, "side", work)
    b.add("gemm", 0, "compute", KERNEL)
    assert simulate(b.graph(), priced(b.graph())).end.tolist() == [1.0, 3.0, 4.0, 7.0]


def test_events_of_one_instant_have_one_order() -> None:
    """By op, then by part, data moving before it has moved; no two events have the same turn."""
    for seed in range(40):
        graph, machine = drawn(seed)
        facts = uses(graph, machine)
        first = facts.row_op[facts.member[facts.member_start[:-1]]]
        keys = [((i, 0, 0), turn) for i, turn in enumerate(facts.op_turn.tolist())]
        for part, turn in enumerate(facts.part_turn.tolist()):
            keys += [((first[part], 1 + part, k), turn + k) for k in (0, 1)]
        turns = [turn for _, turn in sorted(keys)]
        assert turns == sorted(set(turns))


def test_the_clock_takes_turns_whoever_was_first_in_its_queue() -> None:
    for order in ([3, 1, 2, 0], [0, 1, 2, 3], [2, 3, 0, 1]):
        assert applied(order) == [0, 1, 2, 3]


def applied(order: list[int]) -> list[int]:
    clock, seen = Clock(), list[int]()
    for turn in order:
        clock.at(1.0, turn, Due(lambda due: seen.append(due.what), turn))
    clock.run_all()
    return seen


CASES = [
    "01_batched_shared_link", "02_fused_pair_fold_vs_unfold", "02b_fold_batched",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cases_of_batched_messages(shared: Path, case: str) -> None:
    """Times as a naive simulator finds them; folded and unfolded agree.

    The cases' README has other seconds, of kernel prices of its day: 0.40789 and 0.590971 s.
    """
    path = shared.parent / "cases" / "engine" / f"{case}.toml"
    boost = {"simulation.clock": "boost"}
    folded, whole = (run(path, {"simulation.fold": fold, **boost}) for fold in ("auto", "none"))
    assert folded.lanes.axes == ("dp",)
    assert folded.timeline.seconds == pytest.approx(whole.timeline.seconds, rel=1e-9)
    _, end = times(whole.timeline.graph, whole.machine)
    assert whole.timeline.seconds == pytest.approx(max(end), rel=1e-9)


def test_a_run_leaves_nothing_for_the_collector_of_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of a step whose clocks power lowers would else be in memory at once."""
    made: list[Callable[[], object]] = []
    of = Run.of

    def remembered(*about: Any) -> Run:
        run = of(*about)
        made.extend((ref(run), ref(run.bounds)))
        return run

    monkeypatch.setattr(Run, "of", remembered)
    graph, machine = drawn(3)
    with no_garbage():
        simulate(graph, machine)
        assert [one() for one in made] == [None, None]
