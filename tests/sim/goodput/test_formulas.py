"""The best interval between checkpoints, and expected times in closed form."""

from math import exp, inf
from random import Random

import pytest

from sim.goodput.formulas import best, daly, expected, young
from sim.goodput.pace import Costs, Pace


def test_the_cost_at_our_interval_is_within_a_percent_of_that_at_dalys():
    """Where Daly assumes it: checkpoints and steps short against failures. Ours is never worse."""
    draw = Random(1)
    for _ in range(300):
        mtbf = 10 ** draw.uniform(3.0, 6.0)
        stall = mtbf * 10 ** draw.uniform(-5.0, -0.7)
        step = daly(stall, mtbf) * 10 ** draw.uniform(-4.0, -1.5)
        costs, recovery = Costs(stall, 0.0, 0.0), mtbf * draw.uniform(0.0, 0.5)

        def cost(interval, of=(step, costs), m=mtbf, r=recovery):
            return expected(Pace(10**9, of[0], interval, of[1]), m, r)

        ours = cost(best(10**9, step, costs, mtbf))
        theirs = cost(max(1, round(daly(stall, mtbf) / step)))
        assert ours <= theirs * (1 + 1e-12)
        assert theirs <= 1.01 * ours


def test_expected_time_is_dalys_where_steps_stop_until_all_is_safe():
    """Daly 2006: M exp(R/M) (exp((t + d)/M) - 1) T/t."""
    pace = Pace(1000, 3.0, 50, Costs(stall=20.0, settle=0.0, read=0.0))
    by_hand = 900.0 * exp(70 / 900) * (exp((150 + 20) / 900) - 1) * 3000 / 150
    assert expected(pace, 900.0, 70.0) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "costs", [Costs(9, 0, 0), Costs(1, 90, 0), Costs(1, 900, 0), Costs(0, 0, 0)]
)
@pytest.mark.parametrize("mtbf", [40.0, 700.0, 50_000.0])
def test_the_best_interval_is_the_least_of_all(costs, mtbf):
    found = best(2000, 3.0, costs, mtbf)
    times = {k: expected(Pace(2000, 3.0, k, costs), mtbf, 10.0) for k in range(1, 600)}
    assert expected(Pace(2000, 3.0, found, costs), mtbf, 10.0) == pytest.approx(min(times.values()))


def test_a_job_that_never_fails_saves_only_its_end():
    assert best(500, 3.0, Costs(9.0, 0.0, 0.0), inf) == 500
    assert expected(Pace(500, 3.0, 500, Costs(9.0, 0.0, 0.0)), inf, 10.0) == 1509.0


def test_daly_is_young_with_corrections():
    """Young's for short checkpoints, and the mean time between failures for very long ones."""
    assert daly(1e-6, 1e6) == pytest.approx(young(1e-6, 1e6), rel=1e-4)
    assert daly(2000.0, 1000.0) == 1000.0
    assert daly(0.0, 1000.0) == young(0.0, 1000.0) == 0.0
