"""Messages between stages: whose, in what order, posted when, under each policy."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import schedules
from schedules import Plan, Step
from sim import strategies
from sim.builder.job import Job
from sim.builder.program import Kernel, Program
from sim.builder.strategies.exchange import Policy
from sim.builder.strategies.messages import columns, issue_keys, messages, torch_order
from sim.builder.training_step import training_step
from sim.graph import Fixed, Graph
from sim.runs.schedule_run import plan_graph, plan_of, run_plan

TIMES = {"F": 5.0, "I": 4.0, "W": 3.0}
POLICIES = [
    Policy("direction"), Policy("direction", ahead=0), Policy("pair"), Policy("batched", True),
]  # fmt: skip
SHAPES = [("gpipe", 3, 5, 1), ("one_f_one_b", 4, 8, 1), ("interleaved_1f1b", 4, 8, 3)]


def parsed(path: Path) -> list[list[str]]:
    return [line.split(",") for line in path.read_text().split()]


def by_peer(graph: Graph) -> dict[tuple[int, int], list[str]]:
    """(rank, peer) -> what that stream carries, in torch's words."""
    out = {}
    for rank, stream, ops in graph.by_stream():
        if stream != "compute":
            rows = [graph.op(i) for i in ops.tolist()]
            words = [(row, *row.name.upper().split("_")) for row in rows]
            peer = int(stream.split()[-1])
            kinds = {"ACTIVATION": "F", "GRADIENT": "B"}
            out[rank, peer] = [f"{r.stage}{d}_{kinds[k]}{r.microbatch}" for r, d, k in words]
    return out


@pytest.mark.slow
def test_pairs_carry_messages_in_the_order_that_torch_lowers_to(shared: Path) -> None:
    """All sends and receives of each pair of ranks, against torch's own CSV with communication."""
    seen = 0
    for path in sorted((shared / "orders/torch").glob("*.comms.csv")):
        rows = parsed(path)
        if any("OVERLAP" in cell for row in rows for cell in row):
            continue
        steps = [[re.fullmatch(r"(\d+)([FBIW])(\d+)", cell) for cell in row] for row in rows]
        plan: Plan = [[Step(int(s[1]), s[2], int(s[3])) for s in row if s] for row in steps]
        owner = schedules.stage_rank(plan)
        expected = defaultdict(list)
        for rank, row in enumerate(rows):
            for cell in row:
                if found := re.fullmatch(r"(\d+)(SEND|RECV)_([FB])(\d+)", cell):
                    toward = 1 if (found[2] == "SEND") == (found[3] == "F") else -1
                    expected[rank, owner[int(found[1]) + toward]].append(cell)
        assert by_peer(plan_graph(plan, TIMES, Policy("pair"))) == expected, path.name
        seen += 1
    assert seen >= 30


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("name", "p", "m", "v"), SHAPES)
def test_both_ends_meet_once_and_in_one_order(
    name: str, p: int, m: int, v: int, policy: Policy
) -> None:
    """Every message has a send and a receive; each pair of streams takes them in the same order."""
    plan = plan_of(name, p, m, v)
    graph = plan_graph(plan, TIMES, policy)
    assert len(graph.part_work) == 2 * m * (p * v - 1)
    assert np.bincount(graph.part).tolist() == [2] * len(graph.part_work)
    carried = [[int(k) for i in ops for k in graph.parts(i)] for _, _, ops in graph.by_stream()]
    for one in carried:
        for other in carried:
            common = set(one) & set(other)
            if policy.name != "batched":  # a batch is a set: its parts start together
                assert [k for k in one if k in common] == [k for k in other if k in common]


def test_who_sends_to_whom_is_what_the_plan_needs() -> None:
    """By brute force over pairs of steps: forward to the next stage, backward to the one before."""
    steps = columns(plan_of("interleaved_1f1b", 3, 6, 2))
    sent = messages(steps)
    rows = list(zip(steps.rank, steps.stage, steps.kind, steps.microbatch, strict=True))
    expected = {
        (i, j)
        for i, (r, s, k, m) in enumerate(rows)
        for j, (q, t, kind, n) in enumerate(rows)
        if kind == k and n == m and r != q and t - s == (1 if k == "F" else -1)
    }
    assert set(zip(sent.source.tolist(), sent.target.tolist(), strict=True)) == expected
    assert (np.diff(sent.source) >= 0).all()
    assert sorted(torch_order(steps, sent)) == list(range(len(sent.source)))


def test_local_inputs_need_no_message() -> None:
    """Two neighbouring stages on one rank: the backward of a V placement turns without one."""
    plan = [[Step(0, "F", 0), Step(3, "F", 0), Step(3, "B", 0), Step(0, "B", 0)],
            [Step(1, "F", 0), Step(2, "F", 0), Step(2, "B", 0), Step(1, "B", 0)]]  # fmt: skip
    timeline = run_plan(plan, TIMES)
    assert len(timeline.graph.part_work) == 4
    assert timeline.seconds == 4 * 12


def test_megatron_batches_of_1f1b() -> None:
    """Rank 0 of 2, 3 micro-batches, by hand: what is sent after a step and received before the next
    is one exchange (send_forward_recv_backward and so on), and each is waited for."""
    graph = plan_graph(plan_of("one_f_one_b", 2, 3, 1), TIMES, Policy("batched"))
    mine = [i for i in range(len(graph)) if graph.rank[i] == 0]
    got = [
        f"{row.name}{row.microbatch}"
        if (row := graph.op(i)).stream == "compute"
        else len(graph.parts(i))
        for i in mine
    ]
    assert got == ["F0", 1, "F1", 2, "B0", "F2", 2, "B1", 1, "B2"]
    for before, after in pairwise(mine):
        if graph.op(after).stream == "compute" and graph.op(before).stream == "pp":
            assert before in graph.waits(after)


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (3, 3), (4, 4), (2, 3), (3, 8), (4, 10), (4, 6)])
def test_batches_of_the_interleaved_schedule_never_stop_or_wait(p: int, m: int, v: int) -> None:
    """All forwards in warm-up (m = p), and groups of more micro-batches than ranks: exchanges that
    lie where Megatron-LM posts them cost nothing while hops are free."""
    plan = plan_of("interleaved_1f1b", p, m, v)
    assert run_plan(plan, TIMES, Policy("batched", True)).seconds == run_plan(plan, TIMES).seconds


def test_receives_are_posted_as_far_ahead_as_the_policy_says() -> None:
    """With ``ahead`` = k a receive starts only when the step k + 1 before its own has ended."""
    plan = plan_of("one_f_one_b", 3, 6, 1)
    for ahead in (0, 1, 2):
        graph = plan_graph(plan, TIMES, Policy("direction", ahead=ahead))
        steps = {(r, s, k, n): i for r, row in enumerate(plan) for i, (s, k, n) in enumerate(row)}
        for i in range(len(graph)):
            op = graph.op(i)
            if not op.name.startswith("recv"):
                continue
            kind = "F" if op.name == "recv_activation" else "B"
            own = steps[op.rank, op.stage, kind, op.microbatch]
            waits = [graph.op(k) for k in graph.waits(i).tolist()]
            last = [steps[w.rank, w.stage, w.name, w.microbatch] for w in waits]
            assert last == ([own - 1 - ahead] if own > ahead else [])


def test_issue_keys_hold_nothing_up() -> None:
    """No end is issued later than those behind it on its stream: that of key 9 heads the stream, so
    it goes with the one of key 3 at the tail, and so does what lies between."""
    keys, place = np.array([7, 3, 9]), np.array([1, 2, 0])
    assert issue_keys(keys, place).tolist() == [3, 3, 3]
    assert issue_keys(np.array([1, 5, 9]), np.array([0, 1, 2])).tolist() == [1, 5, 9]


@pytest.mark.parametrize(
    "case",
    [
        {"tp": 2, "dp": 2},
        {"tp": 2, "dp": 2, "sp": True, "zero": 1, "overlap_param_gather": True},
        {"tp": 4, "scatter_gather": True},
        {"tp": 2, "scatter_gather": True, "chunks": 2, "dp": 2},
        {"tp": 2, "dp": 2, "policy": Policy("direction", ahead=0)},
    ],
    ids=str,
)
def test_a_send_waits_for_the_end_of_its_step(
    small_job: Callable[..., Job], case: dict[str, object]
) -> None:
    """For the last kernel of that stage and micro-batch, even where collectives were put in between
    (reduced gradients, gathered inputs), and not for reductions over replicas."""
    graph = training_step(small_job(pp=2, **case))
    ops = [graph.op(i) for i in range(len(graph))]
    last: dict[tuple[object, ...], int] = {}
    for i, op in enumerate(ops):
        if op.stream == "compute":
            last[op.rank, op.stage, op.microbatch, op.phase == "F"] = i
    sends = [i for i, op in enumerate(ops) if op.name.startswith("send")]
    assert sends
    for i in sends:
        op = ops[i]
        waits = graph.waits(i).tolist()
        assert last[op.rank, op.stage, op.microbatch, op.name == "send_activation"] in waits
        assert "dp" not in {ops[k].stream for k in waits}


@pytest.mark.parametrize(("schedule", "chunks"), [("", 1), ("", 2), ("zb_v", 2), ("dualpipe_v", 2)])
def test_a_feature_may_add_to_both_ends_of_each_message(
    small_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, schedule: str, chunks: int
) -> None:
    """As many kernels as messages at each end, none where neighbouring stages share a rank."""

    def added(name: str) -> Callable[..., Program]:
        return lambda job, items, kind: [*items, Kernel(name, Fixed(0.0), "F")]

    found = strategies.hooks
    more = {"sent": (added("pack"),), "received": (added("unpack"),)}
    monkeypatch.setattr(strategies, "hooks", lambda name: (*found(name), *more.get(name, ())))
    graph = training_step(small_job(pp=2, microbatches=6, schedule=schedule, chunks=chunks))
    count = Counter(graph.op(i).name.partition("_")[0] for i in range(len(graph)))
    assert count["pack"] == count["unpack"] == count["send"] == count["recv"] > 0
