"""Zero-bubble schedules: their authors' orders and spans, torch's orders, the paper's Table 5."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedules
from schedules import Plan, Step
from schedules.search.plan_draft import PlanDraft
from schedules.search.timing import ends, longest_span, makespan
from schedules.search.zb_v import zero_bubble_v
from schedules.times import Times
from sim.runs.schedule_run import figures, run_plan, simulate_plan

SEARCHED = ["zb_1p", "zb_2p", "zb_v", "v_half", "v_min"]
FIXED = ["zb_h1", "zb_h2", "interleaved_zero_bubble", "one_f_one_b_v"]
UNEQUAL = {"F": 5.0, "I": 4.0, "W": 3.0}


def plan_for(name: str, ranks: int, microbatches: int, **times: float) -> Plan:
    """A searched schedule's for these times, another's as it is."""
    chosen = times if "F" in schedules.options(name) else {}
    return schedules.load(name)(ranks, microbatches, **chosen)


def text(plan: Plan) -> list[list[str]]:
    return [[str(step) for step in steps] for steps in plan]


def peaks(plan: Plan, at_inputs: float) -> list[float]:
    """Activations of a stage held at most on each rank, with that share freed at I."""
    change = {"F": 1.0, "B": -1.0, "I": -at_inputs, "W": at_inputs - 1}
    return [max(itertools.accumulate(change[s.kind] for s in steps)) for steps in plan]


def runs(shared: Path, *families: str) -> list[dict[str, Any]]:
    """The authors' own runs of these families."""
    files = [
        path
        for family in families
        for path in sorted((shared / "orders/zero_bubble").glob(f"{family}_P*.json"))
    ]
    assert files
    return [json.loads(path.read_text()) for path in files]


def seconds(run: dict[str, Any]) -> dict[str, float]:
    return {"F": run["TF"], "I": run["TB"], "W": run["TW"], "p2p": run["Tcomm"]}


def rows(run: dict[str, Any]) -> list[list[str]]:
    return [run["order"][str(rank)] for rank in range(run["P"])]


def test_one_stage_per_rank_is_the_authors_order(shared: Path) -> None:
    """ZB1P, ZB2P and, without a memory limit, ZBinf: every step of every run."""
    memory = {"ZB1P": 1.0, "ZB2P": 2.0, "ZBinf": math.inf}
    for run in runs(shared, *memory):
        limit = memory[run["schedule"]] * run["P"]
        plan = schedules.load("zb_1p")(run["P"], run["M"], memory=limit, **seconds(run))
        assert text(plan) == rows(run)
        assert longest_span(plan, **seconds(run)) == run["longest_stage_span"]
        assert max(peaks(plan, 0.5)) <= limit
    for name, family in (("zb_1p", "ZB1P"), ("zb_2p", "ZB2P")):
        for run in runs(shared, family):
            assert text(plan_for(name, run["P"], run["M"], **seconds(run))) == rows(run)


@pytest.mark.slow
def test_greedy_v_is_the_authors_order(shared: Path) -> None:
    """ZBV: every step of every run; and zb_v, which may take torch's order, is no longer."""
    for run in runs(shared, "ZBV"):
        p, m, times = run["P"], run["M"], seconds(run)
        assert text(zero_bubble_v(p, m, 2 * p, tuple(times.values()))[0]) == rows(run)
        plan = plan_for("zb_v", p, m, **times)
        assert longest_span(plan, **times) <= run["longest_stage_span"]
        assert max(peaks(plan, 0.5)) <= 2 * p


def test_one_f_one_b_v_is_the_authors_order(shared: Path) -> None:
    for run in runs(shared, "V1F1B"):
        assert text(plan_for("one_f_one_b_v", run["P"], run["M"])) == rows(run)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), [("v_half", "V-Half"), ("v_min", "V-Min")])
def test_less_memory_takes_no_longer_than_the_authors_order(
    name: str, family: str, shared: Path
) -> None:
    """Longest own span within 0.5 %, in no more memory, counted as they count it: freed at W."""
    print(f"\n{name:8} ranks microbatches  span ÷ theirs  makespan ÷ theirs")
    for run in runs(shared, family):
        times = seconds(run)
        plan = plan_for(name, run["P"], run["M"], **times)
        span = longest_span(plan, **times) / run["longest_stage_span"]
        makespan = max(map(max, ends(plan, **times))) / run["makespan"]
        print(f"{'':8} {run['P']:5} {run['M']:12}  {span:13.4f}  {makespan:17.4f}")
        assert span <= 1.005
        limit = {"v_half": 2 * ((run["P"] + 2) // 2), "v_min": 2 * ((run["P"] + 4) // 3)}[name]
        assert max(peaks(plan, 0.0)) <= limit
        assert max(peaks(plan, 0.5)) <= max(run["peak_activation_chunks_half_at_I"])


def test_search_over_building_blocks_is_not_shorter(shared: Path) -> None:
    """V-auto gives a bound for each memory: V-Min's, V-Half's and ZB-V's orders meet it."""
    names = {4: "v_min", 6: "v_half", 8: "zb_v"}
    met = Counter[str]()
    for run in runs(shared, "V-auto"):
        if run["P"] == 4 and run["mem_cap_chunks"] in names:
            name = names[run["mem_cap_chunks"]]
            plan = plan_for(name, 4, run["M"], **seconds(run))
            assert longest_span(plan, **seconds(run)) <= run["span"]
            met[name] += 1
    assert len(met) == 3


def torch_files(shared: Path, family: str) -> list[tuple[int, int, int, list[list[str]]]]:
    files = sorted((shared / "orders/torch").glob(f"{family}_P*.compute.csv"))
    assert len(files) >= 7
    out = []
    for file in files:
        p, m, v = (int(part[1:]) for part in file.name.split(".")[0].split("_")[1:])
        cells = [[c for c in line.split(",") if c] for line in file.read_text().split()]
        out.append((p, m, v, cells))
    return out


def test_torch_runs_these_orders(shared: Path) -> None:
    for p, m, v, cells in torch_files(shared, "InterleavedZeroBubble"):
        assert text(schedules.load("interleaved_zero_bubble")(p, m, v)) == cells
    for p, m, _, cells in torch_files(shared, "ZBVZeroBubble"):
        assert text(schedules.load("zb_v")(p, m)) == cells


RATES = {"1f1b": "one_f_one_b", "zb-h1": "zb_h1", "zb-h2": "zb_h2"}


@pytest.mark.slow
def test_bubble_rates_of_table_5(shared: Path) -> None:
    """Qi et al. 2023, Table 5: four digits, by longest own span; rows that give the times."""
    file = shared / "published/zero_bubble_bubble_rates.json"
    seen = Counter[str]()
    for row in json.loads(file.read_text()):
        profile, name = row.get("profile_ms"), RATES.get(row["schedule"])
        if not profile or not name:
            continue
        p = row["parallelism"]["pp"]
        m = row["global_batch"] // row["micro_batch"] // row["parallelism"]["dp"]
        f, i, w, hop = (profile[key] for key in ("T_F", "T_B", "T_W", "T_comm"))
        times = {"F": f, "I": i, "W": w, "p2p": hop}
        rate = simulate_plan(plan_for(name, p, m), times)["bubble_rate_longest_span"]
        assert round(rate, 4) == row["measured"]["bubble_fraction"], row["id"]
        seen[name] += 1
    assert len(seen) == 3
    assert seen.total() >= 18


@pytest.mark.slow
def test_exact_orders_are_the_optima_of_the_authors_program(shared: Path) -> None:
    for run in runs(shared, "ZB-ILP"):
        memory = run["mem_limit"] / 2
        plan = schedules.load("zb_1p")(
            run["P"], run["M"], memory=memory, exact=True, **seconds(run)
        )
        assert longest_span(plan, **seconds(run)) == run["ilp_time"]
        assert max(peaks(plan, 0.5)) <= memory


def every_order(rank: int, microbatches: int) -> list[list[Step]]:
    """All ways to run F, I and W, each in the order of microbatches, W after I after F."""
    out = []
    for kinds in set(itertools.permutations("FIW" * microbatches)):
        done = Counter[str]()
        for kind in kinds:
            done[kind] += 1
            if not done["F"] >= done["I"] >= done["W"]:
                break
        else:
            number = {kind: itertools.count() for kind in "FIW"}
            out.append([Step(rank, kind, next(number[kind])) for kind in kinds])
    return out


@pytest.mark.parametrize("memory", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(
    "times",
    [(5, 4, 3, 1), (2, 7, 3, 0), (3, 2, 8, 2), ([5, 8], [4, 2], [3, 6], 1), ([7, 2], 3, [1, 9], 9)],
)
def test_exact_order_is_the_best_of_all(memory: float, times: tuple[Any, ...]) -> None:
    """Two ranks, two microbatches: every order there is, tried, by longest span and makespan."""
    best = [math.inf, math.inf]
    for orders in itertools.product(every_order(0, 2), every_order(1, 2)):
        if max(peaks(list(orders), 0.5)) <= memory:
            try:
                lengths = (of(list(orders), *times) for of in (longest_span, makespan))
                best = [*map(min, best, lengths)]
            except ValueError:
                continue  # ranks that wait for each other
    search = schedules.load("zb_1p")
    for objective, of, least in zip(
        ("span", "makespan"), (longest_span, makespan), best, strict=True
    ):
        found = search(2, 2, *times, memory=memory, exact=True, objective=objective)
        assert of(found, *times) == least


@pytest.mark.slow
def test_exact_beats_the_heuristic_where_memory_is_short() -> None:
    """Four ranks in memory for three: the heuristic loses a fourth."""
    times = (5.0, 4.0, 3.0, 0.5)
    search, spans = schedules.load("zb_1p"), []
    for exact in (False, True):
        plan = search(4, 6, *times, memory=3, exact=exact)
        assert max(peaks(plan, 0.5)) <= 3
        spans.append(longest_span(plan, *times))
    assert spans[1] == 108 < spans[0]


DURATION = st.integers(1, 12).map(float)
SHAPE = {"p": st.integers(1, 6), "m": st.integers(1, 14)}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(f=DURATION, i=DURATION, w=DURATION, hop=st.integers(0, 3), **SHAPE)
def test_splitting_the_backward_never_costs_time(
    f: float, i: float, w: float, hop: int, p: int, m: int
) -> None:
    """Makespan: ZB-H1 ≤ 1F1B always; ZB-H2 ≤ ZB-H1 for at least 2p microbatches."""
    made = {
        name: max(map(max, ends(plan_for(name, p, m), f, i, w, hop)))
        for name in ("one_f_one_b", "zb_h1", "zb_h2")
    }
    assert made["zb_h1"] <= made["one_f_one_b"]
    if m >= 2 * p:
        assert made["zb_h2"] <= made["zb_h1"]


def test_more_warm_up_costs_time_where_microbatches_are_few() -> None:
    """Why the claim for ZB-H2 begins at 2p: 118 against 116."""
    made = [max(map(max, ends(plan_for(name, 4, 5), 7, 2, 10))) for name in ("zb_h2", "zb_h1")]
    assert made == [118, 116]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(f=DURATION, i=DURATION, w=DURATION, hop=st.integers(0, 3), **SHAPE)
def test_searched_orders_are_whole_and_in_their_memory(
    f: float, i: float, w: float, hop: int, p: int, m: int
) -> None:
    """Each step once, a run to the end, at most the claimed memory; V-Min ≤ V-Half ≤ ZB-V."""
    held = {}
    for name in SEARCHED:
        plan = plan_for(name, p, m, F=f, I=i, W=w, p2p=hop)
        stages = p if name in ("zb_1p", "zb_2p") else 2 * p
        steps = [step for own in plan for step in own]
        assert len(steps) == len(set(steps)) == 3 * stages * m
        assert min(map(len, ends(plan, f, i, w, hop))) == 3 * stages // p * m
        at_inputs = 0.0 if name in ("v_half", "v_min") else 0.5
        module = schedules._module(name)
        claim = module.peak_activations(p, m, stages // p)
        assert all(a <= b for a, b in zip(peaks(plan, at_inputs), claim, strict=True))
        held[name] = max(claim)
    assert held["v_min"] <= held["v_half"] <= held["zb_v"]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(f=DURATION, i=DURATION, w=DURATION, hop=st.integers(0, 3), **SHAPE)
def test_no_rank_waits_for_ever(f: float, i: float, w: float, hop: int, p: int, m: int) -> None:
    """Under rendezvous, by every policy that the schedule claims."""
    for name in [*SEARCHED, *FIXED]:
        with contextlib.suppress(ValueError):
            schedules.check(name, p, m)
            plan = plan_for(name, p, m, F=f, I=i, W=w, p2p=hop)
        for policy in schedules._module(name).POLICIES:
            schedules.require_legal(plan, policy)


@pytest.mark.parametrize("name", [*SEARCHED, *FIXED])
def test_the_longest_path_is_what_the_engine_runs(name: str) -> None:
    times = UNEQUAL | {"p2p": 0.25}
    for p, m in [(1, 3), (2, 6), (4, 12)]:
        plan = plan_for(name, p, m, **times)
        ran = run_plan(plan, times)
        assert ran.seconds == max(map(max, ends(plan, **times)))
        assert figures(plan, ran)["longest_span_s"] == longest_span(plan, **times)


@pytest.mark.parametrize("hop", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("times", [(5.0, 4.0, 3.0), (4.0, 5.0, 3.0), (6.0, 6.0, 6.0)])
def test_hops_lengthen_zb_1p_by_the_closed_form(
    hop: float, times: tuple[float, float, float]
) -> None:
    """(p - 1)(F + I - W) + 4(p - 1)c for m ≥ 2p, W ≤ min(F, I) + c, 2c ≤ W, by longest span."""
    f, i, w = times
    for p, m in [(2, 4), (3, 6), (4, 8), (4, 12), (6, 13)]:
        plan = plan_for("zb_1p", p, m, F=f, I=i, W=w, p2p=hop)
        bubble = longest_span(plan, f, i, w, hop) - m * (f + i + w)
        assert bubble == (p - 1) * (f + i - w + 4 * hop)


@pytest.mark.parametrize("name", SEARCHED)
def test_the_unit_of_time_changes_nothing(name: str) -> None:
    """0.1 + 0.2 is 0.3 to a search, whose ties would else be broken by rounding."""
    large = plan_for(name, 4, 9, F=1000.0, I=1100.0, W=900.0, p2p=50.0)
    small = plan_for(name, 4, 9, F=0.1, I=0.11, W=0.09, p2p=0.005)
    assert small == large


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("zb_1p", {"memory": 0.5}, "memory = 0.5 stage activations hold no microbatch"),
        ("zb_v", {"memory": 3}, "memory = 3 stage activations is too little for 4 ranks; V-Min"),
        ("zb_1p", {"F": -1.0}, "a time of -1.0 s cannot be scheduled"),
        ("v_min", {"p2p": math.nan}, "a time of nan s cannot be scheduled"),
        ("zb_2p", {"exact": True}, "up to 4 ranks and 6 microbatches, not 4 and 8; leave exact"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_a_sentence(
    name: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        schedules.load(name)(4, 8, **options)
    assert sentence in str(error.value)


def test_torch_refuses_these_microbatches() -> None:
    with pytest.raises(ValueError, match="11 microbatches do not make 2 equal rounds"):
        schedules.check("interleaved_zero_bubble", 4, 11)


def test_a_draft_counts_waits_after_the_first_step_only() -> None:
    """Two ranks, F = 5, hop 1: rank 1 starts at 6, which is no wait; rank 0 waits 10 for I."""
    draft = PlanDraft([0, 1], 1, Times([5, 5], [4, 4], [3, 3], [1]), 1)
    for line in (*draft.forward, *reversed(draft.backward)):
        draft.put(line)
    draft.put_all_weights()
    assert draft.clock == [23, 18]
    assert draft.idle == [11, 0]
    assert longest_span(draft.plan, 5, 4, 3, 1) == 12 + draft.worst == 23


@pytest.mark.parametrize("memory", range(4, 12))
def test_zb_v_takes_any_memory_from_v_min_on(memory: int) -> None:
    """Four ranks: 4 stage activations are V-Min's, 6 V-Half's, 8 its own; more is no slower."""
    spans = []
    for limit in (memory, memory + 1):
        plan = schedules.load("zb_v")(4, 9, **UNEQUAL, memory=limit)
        assert max(peaks(plan, 0.5)) <= limit
        spans.append(longest_span(plan, **UNEQUAL))
    assert spans[1] <= spans[0]


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", SEARCHED)
def test_large_searches_end_within_half_a_minute(name: str) -> None:
    begin = time.perf_counter()
    plan_for(name, 64, 512, F=18.522e-3, I=18.086e-3, W=9.337e-3, p2p=0.601e-3)
    assert time.perf_counter() - begin < 30
