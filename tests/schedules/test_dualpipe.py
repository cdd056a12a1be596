"""DualPipe and DualPipeV: DeepSeek's own orders, times and memory; how overlapped pairs run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import schedules
from schedules import Pair, Plan, Step, dualpipe, members
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import plan_graph, plan_of, run_plan, simulate_schedule

pytestmark = pytest.mark.slow

SHAPES = [(2, 4), (2, 10), (4, 8), (4, 20), (6, 12)]
LARGE = [pytest.param(8, m, marks=pytest.mark.slow) for m in (16, 32)]
TIMES = [
    {"F": 5.0, "I": 5.0, "W": 3.0},  # I = F: DeepSeek's formula for fused pairs
    {"F": 4.0, "I": 4.0, "W": 7.0},
    {"F": 5.0, "I": 4.0, "W": 3.0},  # W <= I <= F <= I + W: that for serial pairs
    {"F": 7.0, "I": 11.0, "W": 6.0},
    {"F": 9.0, "I": 4.0, "W": 8.0},
    {"F": 20.0, "I": 1.0, "W": 15.0},
]
NAMES = {"DualPipe": "dualpipe", "DualPipeV": "dualpipe_v"}


def authors_words(name: str, item: Step | Pair, ranks: int, microbatches: int) -> str:
    """As the recordings write it: kind, direction, and the microbatch of that direction."""

    def word(step: Step) -> str:
        if name == "DualPipe":
            direction, m = divmod(step.microbatch, microbatches // 2)
        else:
            direction, m = int(step.stage >= ranks), step.microbatch
        return f"{step.kind}{direction}.{m}"

    words = [word(step) for step in members(item)]
    return words[0] if len(words) == 1 else f"({words[0]}&{words[1]})"


def test_orders_are_deepseeks(shared: Path) -> None:
    """To the step, on every rank."""
    files = sorted((shared / "orders/dualpipe").glob("*.json"))
    assert len(files) >= 8
    for file in files:
        run = json.loads(file.read_text())
        name, p, m = run["schedule"], run["P"], run["M"]
        plan = schedules.load(NAMES[name])(p, m)
        ours = [[authors_words(name, item, p, m) for item in items] for items in plan]
        assert ours == list(run["order_compute"].values()), file.name


def test_fused_pairs_take_deepseeks_times(shared: Path) -> None:
    """Makespan, idle seconds and activations, with hops that cost and pairs that save time."""
    seen = 0
    for file in sorted((shared / "orders/dualpipe").glob("*.json")):
        run = json.loads(file.read_text())
        for case in run["timing"]:
            times = {
                "F": case["F"],
                "I": case["B_full"] - case["W"],
                "W": case["W"],
                "FB": case["FandB"],
                "p2p": case["Tcomm"],
            }
            got = simulate_schedule(NAMES[run["schedule"]], run["P"], run["M"], 2, times)
            assert got["makespan_s"] == pytest.approx(case["makespan"], rel=1e-12), file.name
            assert got["idle_s"] == pytest.approx(list(case["idle"].values()), rel=1e-9)
            assert got["peak_activations"] == list(run["peak_activation_chunks"].values())
            seen += 1
    assert seen >= 32


def test_torchs_dual_pipe_v_is_ours_and_runs_its_pairs_one_member_after_the_other(
    shared: Path,
) -> None:
    """Order to the step; unit cost, hops free or of a tenth of it."""
    folder = shared / "orders/torch"
    seen = 0
    for row in json.loads((folder / "unit_cost_makespans.json").read_text()):
        if row["schedule"] != "DualPipeV":
            continue
        path = folder / f"{row['name']}.compute.csv"
        if not path.exists():
            continue
        lines = path.read_text().split()
        theirs = [[c for c in line.split(",") if c and "GRAD" not in c] for line in lines]
        plan = plan_of("dualpipe_v", row["P"], row["M"], 2)
        assert [[str(item) for item in items] for items in plan] == theirs
        unit = {"F": 1.0, "I": 1.0, "W": 1.0}
        got = simulate_schedule("dualpipe_v", row["P"], row["M"], 2, unit, pair="serial")
        assert (got["makespan_s"], got["idle_s"]) == (row["makespan"], row["idle"])
        assert got["peak_activations"] == row["peak_chunks_released_at_B_or_W"]
        hops = run_plan(plan, unit | {"p2p": 0.1}, pair="serial").seconds
        assert hops == pytest.approx(row["makespan_comm0_1"], rel=1e-12)
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize(("p", "m"), [*SHAPES, *LARGE])
@pytest.mark.parametrize("name", ["dualpipe", "dualpipe_v"])
def test_bubble_and_activations_are_those_claimed(
    name: str, p: int, m: int, times: dict[str, float]
) -> None:
    """The idlest rank's, serial and, where I = F, fused, with pairs that save time or do not."""
    claims = importlib.import_module(f"schedules.{name}")
    numbers = (p, m, 2, *times.values())
    for pair in ("serial", "fused"):
        for both in (sum(times.values()), sum(times.values()) - 1):
            got = simulate_schedule(name, p, m, 2, times | {"FB": both}, pair)
            assert got["peak_activations"] == claims.peak_activations(p, m, 2)
            if pair == "serial" or times["I"] == times["F"]:
                assert max(got["idle_s"]) == claims.bubble(*numbers, pair, both)


def test_the_formulas_are_deepseeks_in_their_domain() -> None:
    """https://github.com/deepseek-ai/DualPipe, with its B whole and FB the overlapped pair."""
    for p in (2, 4, 8):
        assert dualpipe.bubble(p, 2 * p, 2, 5.0, 4.0, 3.0) == (p / 2 - 1) * 6
        for both in (11.0, 13.0):
            fused = dualpipe.bubble(p, 2 * p, 2, 5.0, 5.0, 3.0, "fused", both)
            assert fused == (p / 2 - 1) * (both + (5 + 3) - 3 * 3)
    with pytest.raises(ValueError, match="no closed form"):
        dualpipe.bubble(4, 8, 2, 5.0, 4.0, 3.0, "fused")


def test_the_figures_of_p4_m8() -> None:
    """51 and 54 at unit times, as named beside the choice between serial and fused."""
    unit = {"F": 1.0, "I": 1.0, "W": 1.0}
    for pair, makespan, idle in (("serial", 51, 3), ("fused", 54, 6)):
        got = simulate_schedule("dualpipe_v", 4, 8, 2, unit, pair)
        assert (got["makespan_s"], got["idle_s"]) == (makespan, [idle] * 4)
        assert got["peak_activations"] == [9] * 4


PAIRED: Plan = [  # two ranks; on rank 0 the forward of microbatch 1 overlaps the backward of 0
    [Step(0, "F", 0), Pair(Step(0, "F", 1), Step(0, "B", 0)), Step(0, "B", 1)],
    [Step(1, "F", 0), Step(1, "B", 0), Step(1, "F", 1), Step(1, "B", 1)],
]


@pytest.mark.parametrize(
    ("pair", "makespan"),
    [
        # 1F0 5-10, 1B0 10-17; serial: 0F1 5-10, 1F1 17-22, 1B1 22-29, 0B1 29-36
        ("serial", 36.0),
        # the block begins with 0B0's input, at 17, ends at 29; 1F1 29-34, 1B1 34-41, 0B1 41-48
        ("fused", 48.0),
    ],
)
def test_a_pair_by_hand(pair: str, makespan: float) -> None:
    """F = 5, I = 4, W = 3: a block waits for what either member needs, and sends at its end."""
    times = {"F": 5.0, "I": 4.0, "W": 3.0}
    for policy in ("direction", "pair", "batched"):
        assert run_plan(PAIRED, times, Policy(policy), pair).seconds == makespan


def test_a_fused_pair_takes_fb_seconds_without_a_pause() -> None:
    """FB = 9, and FB = 2, less than F alone."""
    for both in (9.0, 2.0):
        ran = run_plan(PAIRED, {"F": 5.0, "I": 4.0, "W": 3.0, "FB": both}, pair="fused")
        ops = [i for r, s, ops in ran.graph.by_stream() if (r, s) == (0, "compute") for i in ops]
        assert ran.end[ops[2]] - ran.start[ops[1]] == both
        assert ran.start[ops[2]] == ran.end[ops[1]]


def test_what_a_fused_pair_sends_to_one_rank_goes_together() -> None:
    """As DeepSeek's batch_isend_irecv: an activation and a gradient in one hop; serial, in two."""
    plan = plan_of("dualpipe", 4, 8, 1)
    times = {"F": 5.0, "I": 4.0, "W": 3.0}
    sizes = {
        pair: {
            len(graph.parts(i)) for i in range(len(graph)) if graph.op(i).name.startswith("send")
        }
        for pair in ("fused", "serial")
        for graph in [plan_graph(plan, times, Policy("direction"), pair)]
    }
    assert sizes == {"fused": {1, 2}, "serial": {1}}


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "sentence"),
    [
        ("dualpipe", 3, 8, "an even number of ranks; 4 would do"),
        ("dualpipe", 4, 6, "8 would do"),
        ("dualpipe", 4, 9, "10 would do"),
        ("dualpipe_v", 4, 7, "8 would do"),
    ],
)
def test_shapes_without_room_for_both_ways_are_refused(
    name: str, ranks: int, microbatches: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        schedules.check(name, ranks, microbatches)
    assert sentence in str(error.value)
    with pytest.raises(ValueError, match="would do"):
        schedules.load(name)(ranks, microbatches)


def test_dualpipe_has_two_copies_of_each_stage() -> None:
    """On a rank and the one opposite; DualPipeV has one of each, in a V."""
    plan = schedules.load("dualpipe")(4, 8)
    assert {(r, s.stage) for r, row in enumerate(schedules.flat(plan)) for s in row} == {
        (r, s) for s in range(4) for r in (s, 3 - s)
    }
    with pytest.raises(ValueError, match="stage 1 is run by rank 1 and by rank 2"):
        schedules.stage_rank(plan)
    assert list(schedules.stage_rank(schedules.load("dualpipe_v")(4, 8)).values()) == [
        0, 1, 2, 3, 3, 2, 1, 0
    ]  # fmt: skip
