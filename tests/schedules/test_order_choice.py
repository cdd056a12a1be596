"""Searched orders know each message, are no longer than those made by hand, and near the best."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedules
from schedules import Plan, Step
from schedules.search import by_hand
from schedules.search.choice import held, length
from schedules.search.integer import _Program
from schedules.search.plan_draft import ALL_AT_WEIGHTS, HALF_AT_INPUTS, PlanDraft
from schedules.search.timing import ends, makespan
from schedules.search.zero_bubble import zero_bubble
from schedules.times import Times
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import run_plan

SEARCHED = ["zb_1p", "zb_2p", "zb_v", "v_half", "v_min"]
FREED = {"v_half": ALL_AT_WEIGHTS, "v_min": ALL_AT_WEIGHTS}


def drawn(name: str, p: int, seed: int, most: float = 9.0) -> tuple[Any, ...]:
    """F, I and W of every stage, and the message of every boundary, up to longer than steps."""
    of, stages = random.Random(seed), p * schedules.stages_per_rank(name)
    f, i, w = ([float(of.randint(1, int(most))) for _ in range(stages)] for _ in "FIW")
    return f, i, w, [of.choice([0.0, 0.5, 1.0, 4.0, 11.0]) for _ in range(stages - 1)]


def searched(name: str, p: int, m: int, times: tuple[Any, ...], **how: Any) -> Plan:
    """A searched order; its microbatches must be enough."""
    return schedules.load(name)(p, m, *times, **how)


@pytest.mark.parametrize("policy", ["direction", "pair"])
@pytest.mark.parametrize("name", ["zb_1p", "zb_v", "zb_h2", "interleaved_1f1b", "dualpipe_v"])
def test_the_timing_is_the_engines_where_messages_wait_for_each_other(
    name: str, policy: str
) -> None:
    """Each boundary of its own; streams of a direction, and torch's order on those of a pair."""
    for p, m, seed in [(2, 6, 1), (4, 8, 2), (4, 8, 3)]:
        times = drawn(name, p, seed)
        plan = schedules.load(name)(p, m, *times * schedules.takes_times(name))
        seconds = dict(zip(("F", "I", "W", "p2p"), times, strict=True))
        ran = run_plan(plan, seconds, Policy(policy), pair="serial")
        assert ran.seconds == makespan(plan, *times, policy)


def test_a_message_waits_for_the_one_before_it_on_its_stream() -> None:
    """Forwards of 1 s, messages of 5 s: they arrive at 6 and 11 s, gradients at 19 and 24 s."""
    plan = [
        [Step(0, kind, m) for kind in "FIW" for m in (0, 1)],
        [Step(1, kind, m) for kind in "FIW" for m in (0, 1)],
    ]
    assert makespan(plan, 1, 2, 3, 5) == 11 + 1 + 2 + 5 + 5 + 2 + 6
    assert makespan(plan, 1, 2, 3, 0) == 3 + 4 + 2 + 6


CASE = {
    "name": st.sampled_from(SEARCHED),
    "p": st.integers(1, 4),
    "m": st.integers(1, 9),
    "seed": st.integers(0, 10**6),
    "objective": st.sampled_from(["span", "makespan"]),
    "policy": st.sampled_from(["direction", "pair"]),
}


def check_never_longer(name: str, p: int, m: int, seed: int, objective: Any, policy: str) -> None:
    """Whole, legal, in its memory, and no longer than any made by hand that fits there."""
    times = drawn(name, p, seed)
    plan = searched(name, p, m, times, objective=objective, policy=policy)
    schedules.require_legal(plan, policy)
    memory = FREED.get(name, HALF_AT_INPUTS)
    limit = max(schedules._module(name).peak_activations(p, m))
    assert held(plan, memory) <= limit
    of_hand = by_hand.one_stage if name in ("zb_1p", "zb_2p") else by_hand.in_a_v
    for other in of_hand(p, m):
        schedules.require_legal(other, policy)
        if held(other, memory) <= limit:
            assert length(plan, times, objective, policy) <= length(other, times, objective, policy)


@settings(max_examples=12, deadline=None)
@given(**CASE)
def test_a_search_is_never_longer_than_an_order_made_by_hand(**case: Any) -> None:
    check_never_longer(**case)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(**CASE)
def test_a_search_is_never_longer_than_an_order_made_by_hand_in_many_cases(**case: Any) -> None:
    check_never_longer(**case)


def test_an_order_made_by_hand_is_taken_where_it_is_shorter() -> None:
    """By makespan ZB-H1 is: the authors' search makes the longest span short."""
    times = (10.0, 10.7, 11.3, 0.05)
    plan = searched("zb_1p", 8, 16, times, objective="makespan")
    assert plan == schedules.load("zb_h1")(8, 16)
    found = zero_bubble(8, 16, 8, times)
    assert length(plan, times, "makespan") < 0.97 * length(found, times, "makespan")


@pytest.mark.parametrize("name", ["zb_1p", "zb_2p"])
def test_batched_exchanges_leave_an_order_that_runs(name: str) -> None:
    """Most searched orders stop under them; knowing that, a search takes one that does not."""
    times = (5.0, 4.0, 3.0, 0.5)
    schedules.require_legal(searched(name, 4, 9, times, policy="batched"), "batched")


def test_a_draft_knows_each_message() -> None:
    """Three ranks: its clocks are those of the timing."""
    f, i, w, hops = [5, 6, 7], [4, 3, 2], [3, 1, 2], [1, 4]
    draft = PlanDraft(range(3), 2, Times(f, i, w, hops), 3)
    for line in (*draft.forward, *draft.forward, *reversed(draft.backward)):
        draft.put(line)
    assert draft.clock == [steps[-1] for steps in ends(draft.plan, f, i, w, hops)]


def test_a_slow_boundary_changes_the_order() -> None:
    """More forwards run ahead of it; the mean of all messages would not tell where."""
    hops = [0.0, 8.0, 0.0]
    knows, blind = (searched("zb_2p", 4, 12, (5.0, 4.0, 3.0, hop)) for hop in (hops, sum(hops) / 3))
    ahead = [[step.kind for step in steps].index("I") for steps in knows]
    assert ahead[1] - ahead[2] > 2
    assert length(knows, (5.0, 4.0, 3.0, hops)) < length(blind, (5.0, 4.0, 3.0, hops))


def near_the_best(p: int, m: int, objective: Any, seeds: range) -> list[float]:
    """Return the length of zb_1p's order over that of the exact one, which is never longer."""
    ratios = []
    for seed in seeds:
        times = drawn("zb_1p", p, seed)
        spans = [
            length(
                searched("zb_1p", p, m, times, objective=objective, exact=exact), times, objective
            )
            for exact in (False, True)
        ]
        ratios.append(spans[0] / spans[1])
    return ratios


@pytest.mark.parametrize("objective", ["span", "makespan"])
def test_a_search_is_near_the_exact_order_and_never_below_it(objective: Any) -> None:
    """Three ranks, three microbatches."""
    ratios = near_the_best(3, 3, objective, range(2))
    assert min(ratios) >= 1
    assert max(ratios) <= 1.2


def test_the_exact_program_knows_that_messages_wait_for_each_other() -> None:
    """Forwards of 1 s end at 1 and 2 s; their messages of 5 s arrive at 6 and 11 s."""
    program = _Program(2, 2, 2, Times([1, 1], [2, 2], [3, 3], [5]), 99, "makespan")
    assert ({Step(0, "F", 0): 1, Step(1, "F", 1): -1}, -11) in program.rows
    assert program.begin == [0, 6]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["span", "makespan"])
def test_a_search_is_near_the_exact_order_of_four_ranks(objective: Any) -> None:
    ratios = near_the_best(4, 5, objective, range(12))
    print(objective, sorted(round(ratio, 3) for ratio in ratios))
    assert min(ratios) >= 1
    assert max(ratios) <= 1.2


@pytest.mark.parametrize("exact", [False, True])
def test_another_count_of_messages_or_objective_is_refused_in_a_sentence(exact: bool) -> None:
    search = schedules.load("zb_1p")
    sentence = (
        "p2p has 2 times for 4 stages; give one for all, or one for each boundary between two"
    )
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        search(4, 6, p2p=[1.0, 2.0], exact=exact)
    with pytest.raises(ValueError, match=r'^objective = \'x\' must be "span" or "makespan"$'):
        search(4, 6, objective="x", exact=exact)
