"""Stages that take different times: orders searched for them, and what the engine makes of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedules
from schedules import Pair, Plan
from schedules.search.timing import ends, longest_span
from schedules.search.zb_v import zero_bubble_v
from schedules.search.zero_bubble import zero_bubble
from schedules.times import mean
from sim.runs.schedule_run import figures, plan_of, run_plan, simulate_schedule

SEARCHED = ["zb_1p", "zb_2p", "zb_v", "v_half", "v_min"]
FIRST_AND_LAST = ([6.0, 5.0, 5.0, 9.0], [4.0, 4.0, 4.0, 7.0], [3.0, 3.0, 3.0, 5.0])


def held(name: str, plan: Plan) -> float:
    """Activations of a stage held at most by a rank, freed as the schedule counts them."""
    at_inputs = 0.0 if name in ("v_half", "v_min") else 0.5
    change = {"F": 1.0, "I": -at_inputs, "W": at_inputs - 1}
    kinds = [[step.kind for step in steps] for steps in schedules.flat(plan)]
    return max(max(itertools.accumulate(change[kind] for kind in own)) for own in kinds)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, int, tuple[list[float], ...], float]:
    """A schedule, ranks, microbatches, seconds of F, I and W of every stage, of a hop at most 1."""
    name, p = draw(st.sampled_from(SEARCHED)), draw(st.integers(1, 5))
    most = draw(st.sampled_from([3, 12, 100]))
    stages = p * schedules.stages_per_rank(name)
    seconds = st.lists(st.integers(1, most).map(float), min_size=stages, max_size=stages)
    times = tuple(draw(seconds) for _ in "FIW")
    return name, p, draw(st.integers(1, 12)), times, draw(st.sampled_from([0.0, 0.5, 1.0]))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_an_order_for_uneven_stages_is_whole_legal_in_memory_and_takes_what_it_should(
    case: tuple[str, int, int, tuple[list[float], ...], float],
) -> None:
    """The engine's longest own span is the longest path's; knowing more never costs time."""
    name, p, m, times, hop = case
    search, module = schedules.load(name), schedules._module(name)
    plan = search(p, m, *times, hop)
    steps = [step for own in plan for step in own]
    assert len(steps) == len(set(steps)) == 3 * m * len(times[0])
    for policy in module.POLICIES:
        schedules.require_legal(plan, policy)
    assert held(name, plan) <= max(module.peak_activations(p, m))
    span = longest_span(plan, *times, hop)
    ran = run_plan(plan, dict(zip("FIW", times, strict=True)) | {"p2p": hop})
    assert figures(plan, ran)["longest_span_s"] == span
    assert ran.seconds == max(map(max, ends(plan, *times, hop)))
    assert span <= longest_span(search(p, m, *mean((*times, hop))), *times, hop)


@pytest.mark.parametrize("name", SEARCHED)
def test_equal_numbers_stage_by_stage_are_one_number(name: str) -> None:
    """And some of F, I and W may be one number while others are not."""
    search = schedules.load(name)
    for p, m, f, i, w in [(4, 9, 5.0, 4.0, 3.0), (3, 7, 2.0, 7.0, 10.0), (2, 5, 0.1, 0.11, 0.09)]:
        stages = p * schedules.stages_per_rank(name)
        one = search(p, m, f, i, w, 0.05)
        assert search(p, m, [f] * stages, [i] * stages, [w] * stages, 0.05) == one
        assert search(p, m, f, (i,) * stages, w, 0.05) == one


AUTHORS = [  # longest own span in one activation per rank, by the zero-bubble authors' heuristic
    (4, 8, ([4, 7, 3, 7], [8, 4, 6, 8], [6, 9, 8, 9]), 1, 192),
    (5, 9, ([5, 3, 9, 3, 5], [6, 5, 6, 6, 7], [4, 7, 4, 4, 4]), 0, 179),
    (3, 5, ([4, 4, 7], [7, 5, 7], [8, 7, 4]), 1, 114),
    (3, 5, ([9, 8, 9], [4, 7, 5], [9, 6, 5]), 1, 132),
    (4, 4, ([1, 8, 8, 5], [3, 8, 5, 6], [1, 4, 4, 9]), 0, 85),
    (4, 4, ([4, 1, 4, 2], [6, 1, 9, 6], [6, 6, 2, 5]), 1, 81),
    (5, 9, ([9, 5, 9, 7, 5], [5, 9, 6, 4, 9], [6, 8, 8, 6, 8]), 0, 232),  # 227 in ours
    (5, 7, ([6, 7, 7, 9, 9], [5, 8, 6, 6, 5], [7, 8, 7, 8, 6]), 1, 201),  # 188
]


@pytest.mark.parametrize(("p", "m", "times", "hop", "span"), AUTHORS)
def test_the_authors_heuristic_is_met_and_bettered_where_ranks_are_unequal(
    p: int, m: int, times: Any, hop: int, span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ``manual_order`` with a list of costs per stage, run outside; waits count alike there.

    Ours also counts a rank's work, so that one with less of it may wait.
    """
    assert longest_span(zero_bubble(p, m, p, (*times, hop)), *times, hop) <= span
    monkeypatch.setattr("schedules.search.zero_bubble.counts", lambda rank_of, *_: [[0] * p])
    assert longest_span(zero_bubble(p, m, p, (*times, hop)), *times, hop) == span


def test_ranks_with_less_to_do_may_wait() -> None:
    """The longest own span of those last two cases."""
    spans = [longest_span(zero_bubble(p, m, p, (*t, c)), *t, c) for p, m, t, c, _ in AUTHORS[-2:]]
    assert spans == [227, 188]


@pytest.mark.parametrize("name", ["zb_1p", "v_half", "v_min"])
def test_knowing_the_first_and_last_stage_saves_time(name: str) -> None:
    """An embedding on the first of four stages (or eight) and a head on the last."""
    stages = 4 * schedules.stages_per_rank(name)
    times = [[t[0], *[t[1]] * (stages - 2), t[-1]] for t in FIRST_AND_LAST]
    search = schedules.load(name)
    spans = [longest_span(search(4, 8, *given), *times) for given in (times, mean((*times, 0.0)))]
    assert spans[0] < spans[1]


@pytest.mark.parametrize(("name", "stages"), [("zb_1p", 4), ("zb_2p", 4), ("zb_v", 8)])
@pytest.mark.parametrize("kind", ["F", "I", "W"])
def test_another_count_of_times_is_refused_in_a_sentence(name: str, stages: int, kind: str) -> None:
    sentence = f"{kind} has 3 times for {stages} stages; give one for all, or one for each stage"
    for more in ({}, {"exact": True}) if name == "zb_1p" else ({},):
        with pytest.raises(ValueError, match=f"^{sentence}$"):
            schedules.load(name)(4, 6, **{kind: [1.0, 2.0, 3.0]}, **more)
    with pytest.raises(ValueError, match=f"^{kind} has 3 times for 4 stages"):
        simulate_schedule("gpipe", 4, 6, 1, {kind: [1.0, 2.0, 3.0]})


def test_a_bad_time_among_others_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a time of nan s cannot be scheduled"):
        schedules.load("v_min")(2, 6, I=[1.0, 2.0, math.nan, 3.0])
    with pytest.raises(ValueError, match=r"^p2p has 2 times for 2 stages; give one for all"):
        simulate_schedule("gpipe", 2, 6, 1, {"F": 1.0, "p2p": [1.0, 2.0]})


def test_no_stage_runs_more_forwards_first_than_the_one_before_it() -> None:
    """All five on the second of three stages would need more than the first has run."""
    times = ([9.0, 2.0, 7.0], [3.0, 3.0, 5.0], [9.0, 7.0, 9.0])
    plan = schedules.load("zb_2p")(3, 5, *times, 1.0)
    ahead = [[step.kind for step in steps].index("I") for steps in plan]
    assert ahead == sorted(ahead, reverse=True)


def test_zb_v_finds_an_order_where_its_own_method_gets_stuck() -> None:
    """Steps a hundred times as long as others; torch's order and the one for the means are left."""
    times = (
        [1.0, 100.0, 1.0, 1.0, 100.0, 1.0, 100.0, 100.0],
        [100.0, 1.0, 100.0, 1.0, 1.0, 1.0, 100.0, 1.0],
        [1.0, 1.0, 100.0, 1.0, 1.0, 1.0, 100.0, 1.0],
    )
    assert zero_bubble_v(4, 6, 8, (*times, 1.0)) == []
    schedules.require_legal(schedules.load("zb_v")(4, 6, *times, 1.0))


def test_exact_beats_the_heuristic_on_uneven_stages_in_short_memory() -> None:
    """Three ranks in memory for two; the shortest is longer than the bound that ends the search."""
    times = ([9.0, 6.0, 3.0], [1.0, 6.0, 6.0], [2.0, 7.0, 4.0])
    found = schedules.load("zb_1p")(3, 4, *times, 1.0, memory=2, exact=True)
    assert held("zb_1p", found) <= 2
    assert longest_span(found, *times, 1.0) == 87
    assert longest_span(schedules.load("zb_1p")(3, 4, *times, 1.0, memory=2), *times, 1.0) > 87


SHORT = [(3, 4), (4, 5), (2, 6)]


@pytest.mark.parametrize(("p", "m"), SHORT)
@pytest.mark.parametrize("seed", range(3))
def test_the_exact_order_is_never_longer(p: int, m: int, seed: int) -> None:
    """Than the heuristic's; and not shorter than the work of the rank that has most."""
    times = [[float(2 + (7 * s + 3 * n + 5 * seed) % 9) for s in range(p)] for n in range(3)]
    search = schedules.load("zb_1p")
    found = search(p, m, *times, 0.5, exact=True)
    assert held("zb_1p", found) <= p
    span = longest_span(found, *times, 0.5)
    assert span <= longest_span(search(p, m, *times, 0.5), *times, 0.5)
    assert span >= m * max(map(sum, zip(*times, strict=True)))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (5, 3)])
def test_gpipe_with_uneven_stages_is_a_flow_shop_each_way(p: int, m: int) -> None:
    """Identical jobs through machines in a line: all stages once, and m - 1 times the slowest."""
    f, i, w = ([float(3 + (5 * s + n) % 7) for s in range(p)] for n in (0, 2, 4))
    got = simulate_schedule("gpipe", p, m, 1, {"F": f, "I": i, "W": w})
    b = [one + other for one, other in zip(i, w, strict=True)]
    assert got["makespan_s"] == sum(f) + sum(b) + (m - 1) * (max(f) + max(b))
    assert got["idle_s"] == [got["makespan_s"] - m * (f[s] + b[s]) for s in range(p)]


@pytest.mark.parametrize("name", ["one_f_one_b", "interleaved_1f1b", "zb_h1", "dualpipe_v"])
@pytest.mark.parametrize("hop", [0.0, 0.25])
def test_the_engine_takes_the_longest_path_through_uneven_stages(name: str, hop: float) -> None:
    chunks = schedules.stages_per_rank(name)
    f, i, w = ([float(3 + (5 * s + n) % 7) for s in range(4 * chunks)] for n in (0, 2, 4))
    times = {"F": f, "I": i, "W": w, "p2p": hop}
    plan = plan_of(name, 4, 8, chunks, times)
    ran = run_plan(plan, times, pair="serial")
    assert ran.seconds == max(map(max, ends(plan, f, i, w, hop)))


def test_a_fused_pair_takes_fb_seconds_whatever_its_stages() -> None:
    """FB = 7, where the forward alone takes 3 to 9; else F of the one stage and B of the other."""
    f, plan = [3.0, 9.0, 5.0, 4.0], plan_of("dualpipe_v", 2, 4, 2)
    at = next(k for k, item in enumerate(plan[0]) if isinstance(item, Pair))
    assert str(plan[0][at]) == "(0F3;3B1)OVERLAP_F_B"
    for more, seconds in (({"FB": 7.0}, 7.0), ({}, 3.0 + 2.0 + 4.0)):
        ran = run_plan(plan, {"F": f, "I": 2.0, "W": [1.0, 2.0, 3.0, 4.0], **more})
        (ops,) = (o for rank, name, o in ran.graph.by_stream() if (rank, name) == (0, "compute"))
        assert ran.end[ops[at + 1]] - ran.start[ops[at]] == seconds
