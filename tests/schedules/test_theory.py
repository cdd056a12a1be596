"""Pipeline schedules on the ideal machine: closed forms, and the golden runs of their authors."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from schedules import Plan, Step
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import figures, plan_of, run_plan

TIMES = {"F": 5.0, "I": 4.0, "W": 3.0}
STAGE = 12.0  # F + I + W
HOP = 0.25  # a power of two: sums stay exact
SHAPES = [(p, k * p) for p in range(2, 9) for k in (1, 2, 4)]
FEW = [(p, k * p) for p in (2, 3, 4, 8) for k in (1, 4)]


def makespan(
    name: str, p: int, m: int, v: int = 1, policy: str = "direction", hop: float = 0
) -> float:
    rule = Policy(policy, paired=policy == "batched" and v > 1)
    return run_plan(plan_of(name, p, m, v), TIMES | {"p2p": hop}, rule).seconds


@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_one_stage_per_rank_takes_the_closed_form(p: int, m: int) -> None:
    """(m + p - 1)(F + I + W), under every policy: with no hop cost only waits could lengthen it."""
    for name in ("gpipe", "one_f_one_b"):
        assert makespan(name, p, m) == (m + p - 1) * STAGE


@pytest.mark.slow
@pytest.mark.parametrize("v", [2, 4])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_interleaved_takes_the_closed_form(p: int, m: int, v: int) -> None:
    """(m v + p - 1)(F + I + W)."""
    assert makespan("interleaved_1f1b", p, m, v) == (m * v + p - 1) * STAGE


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["pair", "batched"])
@pytest.mark.parametrize(("p", "m"), FEW)
def test_every_policy_runs_and_is_free_where_hops_are(p: int, m: int, policy: str) -> None:
    """Torch's pairs and Megatron's batches neither stop nor cost anything at zero hop cost."""
    for name in ("gpipe", "one_f_one_b"):
        assert makespan(name, p, m, 1, policy) == (m + p - 1) * STAGE
    for v in (2, 3):
        assert makespan("interleaved_1f1b", p, m, v, policy) == (m * v + p - 1) * STAGE


@pytest.mark.slow
@pytest.mark.parametrize(("p", "m"), FEW)
def test_hops_lengthen_a_schedule_by_the_closed_form(p: int, m: int) -> None:
    """1F1B c [(4p - 6) + 2(m - p)(p - 1) / p]; interleaved 2(pv - 1)c; GPipe there and back."""
    extra = HOP * ((4 * p - 6) + 2 * (m - p) * (p - 1) / p)
    assert makespan("one_f_one_b", p, m, hop=HOP) == (m + p - 1) * STAGE + extra
    assert makespan("gpipe", p, m, hop=HOP) == (m + p - 1) * STAGE + 2 * (p - 1) * HOP
    for v in (2, 3):
        expected = (m * v + p - 1) * STAGE + 2 * (p * v - 1) * HOP
        assert makespan("interleaved_1f1b", p, m, v, hop=HOP) == expected


@pytest.mark.parametrize(("p", "m"), [(4, 2), *FEW])
def test_activations_at_the_peak_are_those_of_the_table(p: int, m: int) -> None:
    """GPipe m; 1F1B min(m, p - r); interleaved one more than the warm-up, at most m v."""
    shapes = {
        ("gpipe", 1): lambda r: m,
        ("one_f_one_b", 1): lambda r: min(m, p - r),
        ("interleaved_1f1b", 3): lambda r: min(m * 3, 2 * (p - 1 - r) + 2 * min(p, m) + 1),
    }
    for (name, v), held in shapes.items():
        plan = plan_of(name, p, m, v)
        got = figures(plan, run_plan(plan, TIMES))["peak_activations"]
        assert got == [held(r) for r in range(p)]


@pytest.mark.parametrize(("p", "m"), FEW)
def test_idle_seconds_of_every_rank(p: int, m: int) -> None:
    """All ranks idle p - 1 stages; in its own span rank r waits for the p - 1 - r below it."""
    plan = plan_of("one_f_one_b", p, m, 1)
    got = figures(plan, run_plan(plan, TIMES))
    assert got["idle_s"] == [(p - 1) * STAGE] * p
    assert got["idle_in_span_s"] == [(p - 1 - r) * STAGE for r in range(p)]
    assert got["longest_span_s"] == got["makespan_s"] == (m + p - 1) * STAGE


def parsed(rows: list[list[str]]) -> Plan:
    cells = [[re.fullmatch(r"(\d+)([FBIW])(\d+)", cell) for cell in row if cell] for row in rows]
    return [[Step(int(c[1]), c[2], int(c[3])) for c in row if c] for row in cells]


@pytest.mark.slow
def test_runs_of_the_zero_bubble_authors(shared: Path) -> None:
    """1F1B, interleaved, ZB1P, ZB2P and the V forms, some with hop cost: all that they report."""
    seen = Counter[str]()
    for path in sorted((shared / "orders/zero_bubble").glob("*.json")):
        run = json.loads(path.read_text())
        if "makespan" not in run or "order" not in run:
            continue  # figures of a search, without its order
        plan = parsed([run["order"][str(rank)] for rank in range(run["P"])])
        times = {"F": run["TF"], "I": run["TB"], "W": run["TW"], "p2p": run["Tcomm"]}
        got = figures(plan, run_plan(plan, times))
        assert got["makespan_s"] == run["makespan"], path.name
        assert got["longest_span_s"] == run["longest_stage_span"], path.name
        assert got["idle_in_span_s"] == run["idle_in_span_per_rank"], path.name
        assert got["peak_activations"] == run["peak_activation_chunks_half_at_I"], path.name
        seen[run["schedule"]] += 1
    assert len(seen) >= 9
    assert seen.total() >= 150


OURS = {"GPipe": "gpipe", "1F1B-executed": "one_f_one_b", "Interleaved1F1B": "interleaved_1f1b"}


@pytest.mark.slow
def test_torch_schedules_at_unit_cost(shared: Path) -> None:
    """Torch's own orders and ours: F = I = W = 1, hops free or of a tenth of it."""
    folder = shared / "orders/torch"
    rows = json.loads((folder / "unit_cost_makespans.json").read_text())
    unit = {"F": 1.0, "I": 1.0, "W": 1.0}
    seen = 0
    for row in rows:
        path = folder / f"{row['name']}.compute.csv"
        if not path.exists():
            continue
        cells = [line.split(",") for line in path.read_text().split()]
        if any("OVERLAP" in cell for line in cells for cell in line):
            continue  # pairs of the DualPipe family are not steps here yet
        plan = parsed(cells)
        if name := OURS.get(row["schedule"]):
            assert plan == plan_of(name, row["P"], row["M"], row["v"])
        got = figures(plan, run_plan(plan, unit))
        assert got["makespan_s"] == row["makespan"], row["name"]
        assert got["idle_s"] == row["idle"]
        hops = run_plan(plan, unit | {"p2p": 0.1}).seconds
        assert hops == pytest.approx(row["makespan_comm0_1"], rel=1e-12), row["name"]
        seen += 1
    assert seen >= 30
