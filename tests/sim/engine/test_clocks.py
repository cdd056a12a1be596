"""Clocks that a GPU's power allows: closed forms at both ends and at other caps, windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import run
from sim.engine import simulate
from sim.engine.clocks import _windows, throttled
from sim.engine.reclocked import reclocked
from sim.graph import Builder, Compute, Fixed, Work
from sim.machine.assumed import assumed
from sim.machine.hardware import NOTHING, Limits, Machine, table
from sim.machine.kernels import compute_seconds
from sim.machine.power import LOWEST, _halved, _shares, clock, limited
from sim.timeline import Timeline
from tests.sim.machine.test_kernels import COSTS, TOY_GEMM

DERATING, RATED, IDLE = 0.25, 400.0, 100.0
EXPONENT, FLOOR = (assumed("power")[name] for name in ("exponent", "floor"))
GEMM = Compute("gemm", 2.0 * 600 * 250 * 60, 0.0, (1, 600, 250, 60))  # 76 s alone
NORM = Compute("norm", 0.0, 30_000.0)


def gpu(cap: float = RATED, **constants: float) -> SimpleNamespace:
    """The GPU of the kernels' tests, with products that lose a fifth of their clock at 400 W."""
    gemm = {**TOY_GEMM, "derating": DERATING, "derating_seconds": 1000.0, "fixed": 0.0, **constants}
    costs = {**COSTS, "gemm": {"bf16": gemm}, "power": {"rated": RATED, "cap": cap, "idle": IDLE}}
    peak = {"bf16": 1e6, "fp32": 1e5}
    return SimpleNamespace(sms=4, memory_bandwidth=1000.0, peak=peak, costs=costs)


def ran(of: SimpleNamespace, works: list[Work]) -> tuple[Timeline, Machine]:
    """These works one after another on one stream, at boost clock."""
    b = Builder()
    for work in works:
        b.add("op", 0, "compute", work)
    graph = b.graph()
    machine = table(graph.works, lambda work: _price(of, work), lambda _: NOTHING, np.empty(0), 4)
    return simulate(graph, machine), machine


def _price(of: SimpleNamespace, work: Work) -> tuple[float, float, float]:
    return (0.0, 0.0, work.seconds) if isinstance(work, Fixed) else compute_seconds(of, work)


def slowed(of: SimpleNamespace, works: list[Work]) -> np.ndarray:
    timeline, machine = ran(of, works)
    clocks = throttled(timeline, limited(machine, of, timeline.graph.works)).clocks
    return np.ones(len(timeline.graph)) if clocks is None else clocks


def test_a_topology_may_state_its_exponent_and_powers() -> None:
    """Products sink by the square root of the power that is left; attention takes as it says."""
    of = gpu(370.0)
    of.costs["power"] |= {"exponent": 2.0, "memory": 0.3, "attention": 0.5}
    factors = slowed(of, [GEMM] * 20)
    assert factors == pytest.approx(1.25 / 0.9**0.5, rel=1e-5)
    full = 1.25**2
    attention = Compute("attention", 4.0 * 8 * 64 * 64 * 16, 0.0, (1, 8, 64, 64, 16))
    assert _shares(of, attention) == pytest.approx((0.5 * full, 0.0))
    assert _shares(of, NORM) == (0.0, 0.3)


@pytest.mark.parametrize("cap", [400.0, 370.0, 320.0, 180.0, 130.0])
def test_products_without_a_pause_run_at_the_clock_of_the_cap(cap: float) -> None:
    """At the rated power 1 / (1 + derating); above the floor of voltage by the exponent, then in
    proportion."""
    share = (cap - IDLE) / (RATED - IDLE)
    full = (1 + DERATING) ** EXPONENT  # power of products at boost clock
    expected = (share / full) ** (1 / EXPONENT)
    if expected < FLOOR:
        expected = share / full / FLOOR ** (EXPONENT - 1)
    assert slowed(gpu(cap), [GEMM] * 80) == pytest.approx(1 / expected, rel=1e-5)
    if cap == RATED:
        assert 1 / expected == pytest.approx(1 + DERATING)


def test_a_gpu_that_mostly_waits_keeps_its_clock() -> None:
    """A product in a third of the time takes 1.25^2.5 / 3 = 0.58 of the power there is."""
    timeline, machine = ran(gpu(), [GEMM, Fixed(152.0, "communication", "dp")] * 40)
    machine = limited(machine, gpu(), timeline.graph.works)
    assert machine.limits is not None
    assert throttled(timeline, machine) is machine


def test_the_clock_falls_after_a_window_and_recovers_in_a_pause() -> None:
    """Products for 3,800 s and a pause as long, with a window of 1,000 s: the first are fast."""
    factor = slowed(gpu(), [GEMM] * 50 + [Fixed(3800.0, "communication", "dp")])[:-1]
    assert factor[0] == 1.0
    assert factor[15:-1] == pytest.approx(1 + DERATING, rel=1e-5)  # a window has passed
    assert (np.diff(factor[:-1]) >= -1e-9).all()


def test_memory_bound_kernels_keep_their_times_and_take_power() -> None:
    """Beside them products stay faster: a norm takes 0.6 of full power, a product 1.75."""
    factor = slowed(gpu(), [GEMM, NORM] * 60)
    assert factor[1::2] == pytest.approx(1.0)
    assert 1.0 < factor[60] < 1 + DERATING


def test_kernels_that_an_edit_lets_take_no_time_have_a_clock() -> None:
    timeline, machine = ran(gpu(), [GEMM, NORM] * 3)
    machine = limited(machine, gpu(), timeline.graph.works)
    none = {name: getattr(machine, name) * [1.0, 0.0] for name in ("arithmetic", "memory", "fixed")}
    clocks = throttled(timeline, replace(machine, **none)).clocks
    assert clocks is not None
    assert clocks[1::2].tolist() == [1.0] * 3


def test_traffic_that_takes_more_than_the_cap_does_not_stop_arithmetic() -> None:
    """At 250 of 400 W half of the power is left, and a norm alone would take 0.6 of it."""
    factor = slowed(gpu(250.0), [NORM] * 80 + [GEMM])
    assert factor[:-1] == pytest.approx(1.0)
    assert 1.0 <= factor[-1] < 3.0


def test_a_cap_hardly_above_idle_power_leaves_a_clock() -> None:
    assert slowed(gpu(IDLE + 1e-9), [GEMM] * 3) == pytest.approx(1 / LOWEST)


def test_clocks_around_a_long_wait_do_not_depend_on_its_length() -> None:
    """The longest has too many windows to look into each; kernels of two ranks differ."""
    found = []
    for seconds in (1e6, 1e12):
        b, of = Builder(), gpu(130.0)
        for rank, count in ((0, 50), (1, 30)):
            for work in (*[GEMM] * count, Fixed(seconds)):
                b.add("op", rank, "compute", work)
        works = (graph := b.graph()).works
        machine = table(works, lambda work: _price(gpu(), work), lambda _: NOTHING, np.empty(0), 4)
        timeline, machine = simulate(graph, machine), limited(machine, of, works)
        factors = throttled(timeline, machine).clocks
        assert factors is not None
        clocks = reclocked(timeline, [machine], np.arange(len(graph)))[0]
        assert clocks == pytest.approx(1 / factors, rel=1e-4)
        found.append(factors)
    assert found[1][5:50] == pytest.approx(found[0][5:50], rel=0.05)
    assert found[0][49] > 10.0


def test_without_a_power_table_clocks_stay_at_boost() -> None:
    of = gpu()
    del of.costs["power"]
    timeline, machine = ran(of, [GEMM])
    assert limited(machine, of, timeline.graph.works) is machine
    assert throttled(timeline, machine) is machine


@given(st.floats(0.05, 1.0), st.floats(0.0, 3.0), st.floats(0.0, 0.9))
def test_a_clock_takes_what_the_limit_allows(busy: float, tensor: float, memory: float) -> None:
    """Put back into the formula, the clock gives the limit, or is boost and gives less."""
    of = Limits(1.0, 1.0, EXPONENT, FLOOR)
    c = clock(of, np.array([tensor]), np.array([memory]), np.array([busy]))[0]
    pace = 1 + busy * (1 / c - 1)
    drawn = (tensor * max(c, FLOOR) ** (EXPONENT - 1) + memory) / pace
    assert drawn == pytest.approx(1.0, abs=1e-6) or (c == 1.0 and drawn <= 1.0)


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0.1, 3), st.floats(0, 2)), min_size=1),
    st.floats(0.2, 30),
)
def test_windows_are_means_of_what_runs(
    ops: list[tuple[float, float, float]], window: float
) -> None:
    """Against sums of overlaps with each window, over as many copies of the step as it reaches."""
    start, length, rate = (np.array(column) for column in zip(*ops, strict=True))
    end, step = start + length, 12.0
    at = np.linspace(0.0, step, 7)
    expected = [
        sum(
            r * max(0.0, min(t, b + k * step) - max(t - window, a + k * step))
            for k in range(-4, 2)
            for a, b, r in zip(start, end, rate, strict=True)
        )
        / window
        for t in at
    ]
    (found,) = _windows(start, end, rate[None], at, step, window)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_a_recipe_runs_at_boost_clock_where_it_says_so() -> None:
    """GPT 14.6B on A100s: products lose a little of their clock in the steady phase."""
    recipe = Path(__file__).parents[3] / "validation/recipes/zero_bubble_14.6b_1f1b.toml"
    boost = run(recipe, {"simulation.clock": "boost"})
    held = run(recipe, {"simulation.spread": False})  # as at boost clock, where GPUs are alike
    assert boost.machine.limits is None
    assert boost.timeline.seconds < held.timeline.seconds < 1.2 * boost.timeline.seconds
    clocks = throttled(boost.timeline, held.machine).clocks
    assert clocks is not None
    assert clocks.min() >= 1.0
    again = simulate(boost.timeline.graph, replace(boost.machine, clocks=clocks))
    assert again.end.tolist() == held.timeline.end.tolist()


@pytest.mark.parametrize("floor", [0.0, 0.6, 0.99])
def test_newtons_clocks_are_those_of_plain_halving(floor: float) -> None:
    """The bits are the same, also where a window has no arithmetic or is busy all the time."""
    of, draw = Limits(0.9, 1.0, EXPONENT, floor), np.random.default_rng(0).uniform
    tensor, memory = draw(0.0, 2.0, 2000), draw(0.0, 0.9, 2000)
    busy = draw(-0.5, 1.5, 2000).clip(0.0, 1.0)
    halved = np.maximum(_halved(of, tensor, memory, busy), LOWEST)
    expected = np.where(tensor + memory > of.power, halved, 1.0)
    assert clock(of, tensor, memory, busy).tobytes() == expected.tobytes()
