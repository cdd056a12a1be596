"""Runs with failures: against a naive run step by step, and against closed forms."""

import math

import pytest
import simpy

from sim.goodput.faults import Faults, Slow
from sim.goodput.formulas import expected
from sim.goodput.pace import Costs, Pace
from sim.goodput.process import Job, simulate
from sim.goodput.progress import Progress
from tests.sim.goodput import naive

KINDS = {
    "blocking": Costs(stall=31.0, settle=0.0, read=60.0),
    "asynchronous": Costs(stall=3.0, settle=47.0, read=60.0),
    "late": Costs(stall=3.0, settle=130.0, read=60.0),  # longer than the steps between two
    "memory": Costs(stall=3.0, settle=0.5, read=4.0),
    "free": Costs(stall=0.0, settle=0.0, read=0.0),
}


def faults(mtbf=1500.0, **others):
    return Faults({"gpu": 0.7 / mtbf, "software": 0.3 / mtbf}, 40.0, 90.0, **others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("steps", "interval"), [(1000, 37), (999, 9), (40, 50), (7, 1)])
def test_a_run_takes_what_it_takes_step_by_step(kind, steps, interval):
    """With the same failures, whatever is saved when, and however many cycles are done at once."""
    pace = Pace(steps, 2.5, interval, KINDS[kind])
    for seed in "abcdef":
        alone = naive.seconds(pace, naive.times(seed, 1500.0), 130.0 + pace.costs.read)
        assert simulate(pace, faults(), seed).seconds == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_add_up_to_the_run(kind):
    slow = Slow(between=400.0, lasts=200.0, factors=(1.1, 3.0))
    pace = Pace(2000, 2.5, 20, KINDS[kind])
    found = simulate(pace, faults(spares=1, repair=900.0, slow=slow), "1")
    assert math.fsum(found.parts.values()) == pytest.approx(found.seconds, rel=1e-9)
    assert min(found.parts.values()) >= 0.0
    assert all(found.parts[part] for part in ("slow_steps", "lost_work", "waiting"))


def test_the_same_seed_gives_the_same_bits():
    slow = Slow(between=400.0, lasts=200.0, factors=(1.1, 3.0))
    pace = Pace(500, 2.5, 20, KINDS["asynchronous"])
    runs = [simulate(pace, faults(spares=1, repair=900.0, slow=slow), seed) for seed in "112"]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("kind", KINDS)
def test_long_runs_take_the_expected_time(kind):
    """The mean of 20 runs with 40 failures each lies within 3 % of the closed form."""
    pace = Pace(20_000, 2.5, 40, KINDS[kind])
    runs = [simulate(pace, faults(), f"{seed}").seconds for seed in range(20)]
    closed = expected(pace, 1500.0, 130.0 + pace.costs.read)
    assert math.fsum(runs) / len(runs) == pytest.approx(closed, rel=0.03)


@pytest.mark.parametrize("spares", [0, 2])
def test_waiting_for_spares_is_a_machine_repair_problem(spares):
    """Broken nodes are a birth-death chain that stops to fail when there is none to take over."""
    mtbf, repair = 1000.0, 1500.0
    pace = Pace(1_500_000, 1.0, 1, KINDS["free"])
    found = simulate(pace, Faults({"node": 1.0 / mtbf}, 0.0, 0.0, spares, repair), "1")
    weights = [(repair / mtbf) ** k / math.factorial(k) for k in range(spares + 2)]
    share = weights[-1] / math.fsum(weights)
    assert found.parts["waiting"] / found.seconds == pytest.approx(share, rel=0.1)


def test_each_broken_node_takes_a_spare():
    """Also one that breaks while the job starts again; repairs take longer than the run."""
    env = simpy.Environment()
    of = Faults({"gpu": 1e-3, "software": 1e-3}, 300.0, 300.0, spares=1000, repair=1e12)
    job = Job(env, Pace(5000, 1.0, 10, KINDS["free"]), of, "1")
    env.run(job.process)
    assert job.spares.level == 1000 - job.counts["gpu"]
    assert job.counts["software"] > 5


def test_software_needs_no_spare():
    pace = Pace(10_000, 1.0, 10, KINDS["free"])
    found = simulate(pace, Faults({"gpu": 0.0, "software": 1e-3}, 0.0, 0.0, 0, 1e9), "1")
    assert found.parts["waiting"] == 0.0
    assert found.failures["software"] > 5


def test_slow_spells_cost_what_their_share_of_the_time_says():
    """Spells overlap as calls without a queue (M/G/inf): none is there with exp(-rate x mean)."""
    slow = Slow(between=1000.0, lasts=700.0, factors=(1.6,))
    pace = Pace(1_000_000, 1.0, 100, KINDS["free"])
    found = simulate(pace, Faults({}, 0.0, 0.0, slow=slow), "1")
    none = math.exp(-0.7)
    assert found.seconds == pytest.approx(pace.steps / (none + (1.0 - none) / 1.6), rel=0.03)


def test_the_slowest_of_several_spells_counts():
    """Factors 1.2 and 3 in turn, so often and long that nearly always one of 3 is there."""
    slow = Slow(between=1.0, lasts=20.0, factors=(1.2, 3.0))
    pace = Pace(3000, 1.0, 100, KINDS["free"])
    found = simulate(pace, Faults({}, 0.0, 0.0, slow=slow), "1")
    assert found.seconds == pytest.approx(9000.0, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_many_cycles_at_once_are_those_cycles_one_by_one(kind):
    pace = Pace(777, 2.5, 20, KINDS[kind])
    whole, parts = Progress(pace), Progress(pace)
    whole.advance(1000.0)
    for _ in range(500):
        parts.advance(2.0)
    assert parts.saved.steps == whole.saved.steps
    assert parts.now.steps == pytest.approx(whole.now.steps)
    assert parts.stalled == pytest.approx(whole.stalled)
    assert parts.ahead(1.5) == pytest.approx(whole.ahead(1.5))


def test_a_checkpoint_that_was_not_safe_is_lost():
    """After 20 steps and the copy, 46 of 47 s of writing are over: all is lost; at 47 s, none."""
    for wait, left in ((46.0, 0.0), (47.0, 20.0)):
        of = Progress(Pace(100, 2.5, 20, KINDS["asynchronous"]))
        of.advance(50.0 + 3.0 + wait)
        lost = of.lose()
        assert of.now.steps == left
        assert lost == pytest.approx(50.0 + wait - 2.5 * left)
