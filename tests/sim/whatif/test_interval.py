"""The interval of a step time: against hand-worked paths, closed forms and real simulations."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from math import exp, hypot

import numpy as np
import pytest

from sim import report, units
from sim.analysis.critical_path import critical_path
from sim.engine import simulate
from sim.graph import Builder, Communication, Compute, Fixed
from sim.machine import cluster
from sim.machine.assumed import assumed, assuming, ranges
from sim.machine.attention_ranges import RULES
from sim.machine.edits import IN_PROPORTION
from sim.machine.hardware import ideal
from sim.machine.power import limited
from sim.machine.residuals import Residual, alike, family, residuals
from sim.machine.variants import ends, variant
from sim.recipe import recipe_file
from sim.runs.run import Result, run
from sim.table import table
from sim.timeline import Timeline
from sim.whatif import interval as intervals
from sim.whatif.host_ends import issued
from sim.whatif.interval import changes, draw, moves
from sim.whatif.taken import taken
from tests.recipes import tables
from traincast.commands.parts.figures import summary_rows
from traincast.commands.parts.tables import NEAREST

MODEL = {"preset": "llama3-8b", "layers": 2, "sequence": 4096}
JOB = tables(MODEL, 16, gpus=16, tp=2, pp=2, sp=True)


@pytest.fixture(scope="module")
def ran() -> Result:
    return run(recipe_file.parse(JOB))


def test_values_are_assumed_otherwise_only_inside():
    with assuming("power.floor", 0.6), assuming("power.exponent", 2.5):
        assert (assumed("power")["floor"], assumed("power")["exponent"]) == (0.6, 2.5)
        assert assumed("power")["memory"] == ranges()["power.memory"].value
    assert assumed("power")["floor"] == ranges()["power.floor"].value


def test_a_step_of_one_kernel_has_the_interval_of_its_price(monkeypatch):
    """Log-normal: 80 % lie between exp(-1.2816 sigma) and exp(1.2816 sigma) times the step."""
    table = {"gemm": Residual(0.3, 0.4)}
    monkeypatch.setattr(intervals, "residuals", lambda: table)
    b = Builder()
    b.add("op", 0, "compute", Compute("gemm", 1.0, 1.0, (1, 8, 8, 8)))
    on = cluster.load("dgx_h100", 1)
    drawn = draw(b.graph().works, on, [], np.random.default_rng(1), 40_000)
    off = 2.0 + changes(np.array([2.0]), {}, drawn)
    expected = [2.0 * exp(-1.2816 * 0.5), 2.0 * exp(1.2816 * 0.5)]
    assert np.quantile(off, intervals.WITHIN) == pytest.approx(expected, rel=0.02)


def test_an_interval_holds_its_step_where_ranges_go_to_one_side(monkeypatch, ran):
    """A value whose both ends lengthen the step by a third of it, and one that shortens it so."""
    path, seed = critical_path(ran.timeline), 1
    monkeypatch.setattr(intervals, "residuals", dict)
    step = ran.timeline.seconds
    for sign, inside in ((1.0, 0), (-1.0, 1)):
        monkeypatch.setattr(intervals, "moves", lambda *_: {"gpu.spread": (sign, sign)})  # noqa: B023
        found = intervals.interval(path, ran.machine, ran.boost, ran.cluster, seed)
        assert found[inside] == pytest.approx(step, rel=1e-5)
        assert abs(found[1 - inside] - step) > 0.5


def test_errors_are_shared_by_a_family_and_by_a_shape():
    """Two sends of one size are off alike, two products of different shapes in part."""
    on = cluster.load("dgx_h100", 16)
    gemm = Compute("gemm", 1.0, 1.0, (1, 8, 8, 8))
    works = [
        gemm, gemm._replace(shape=(1, 8, 8, 16)),
        Communication("p2p", 8.0, (0, 1), "pp"), Communication("p2p", 8.0, (2, 3), "pp"),
        Communication("p2p", 8.0, (7, 8), "pp"),
    ]  # fmt: skip
    assert [family(work, on) for work in works] == ["gemm"] * 2 + ["p2p"] * 2 + [
        "p2p_between_nodes"
    ]
    assert alike(works[2]) == alike(works[3])
    factors = draw(works, on, [], np.random.default_rng(0), 20_000).factors
    assert (factors[:, 2] == factors[:, 3]).all()
    of = residuals()["gemm"]
    together = of.family**2 / (of.family**2 + of.shape**2)
    found = np.corrcoef(np.log(factors[:, :2]).T)[0, 1]
    assert found == pytest.approx(together, abs=0.02)
    assert abs(np.corrcoef(np.log(factors[:, [0, 2]]).T)[0, 1]) < 0.03


def test_a_chip_without_calibration_has_a_wider_interval():
    """An RTX 4090 has the A100's constants; an A100 with 40 GB is the same chip."""
    works = [Compute("gemm", 1.0, 1.0, (1, 8, 8, 8))]
    of = residuals()["gemm"]
    for name, borrowed in (("rtx4090", of.borrowed), ("dgx_a100_40gb", 0.0), ("dgx_b200", 0.0)):
        drawn = draw(works, cluster.load(name, 2), [], np.random.default_rng(2), 20_000)
        expected = hypot(of.family, of.shape, borrowed)
        assert np.log(drawn.factors).std() == pytest.approx(expected, rel=0.02)


def test_an_assumed_value_moves_the_step_as_a_second_simulation_does(ran):
    """Within a tenth of the step's change, or a fiftieth of a per cent of the step.

    Within a third for contention: what is slower has less communication beside it.
    """
    path = critical_path(ran.timeline)
    found = moves(path, ran.machine, ran.boost, ran.cluster)
    graph, step = ran.timeline.graph, ran.timeline.seconds
    assert found.keys() >= {"power.exponent", "power.memory", "power.attention", "gpu.spread"}
    for name, both in found.items():
        for value, first in zip(ranges()[name][1:], both, strict=True):
            other = variant(ran.machine, ran.cluster.gpu, graph.works, name, value)
            change = simulate(graph, other).seconds - step
            within = 0.33 if name == "communication.contention" else 0.1
            assert first == pytest.approx(change, rel=within, abs=2e-4 * step), (name, value)


def simulated(ran: Result, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the step in each draw: to first order, and of a simulation of its own."""
    graph = ran.timeline.graph
    path = critical_path(ran.timeline)
    took = np.bincount(graph.work[[*path.ops]], path.took, len(graph.works))
    found = moves(path, ran.machine, ran.boost, ran.cluster)
    drawn = draw(graph.works, ran.cluster, [*found], np.random.default_rng(5), draws)
    first = ran.timeline.seconds + changes(took, found, drawn)
    real = []
    for k in range(draws):
        with ExitStack() as other:
            for name, values in drawn.values.items():
                other.enter_context(assuming(name, values[k]))
            machine = limited(ran.machine, ran.cluster.gpu, graph.works)
        for name in ("gpu.spread", "communication.contention"):
            value = drawn.values[name][k]
            machine = variant(machine, ran.cluster.gpu, graph.works, name, value)
        longer = {name: getattr(machine, name) * drawn.factors[k] for name in IN_PROPORTION}
        real.append(simulate(graph, replace(machine, **longer)).seconds)
    return first, np.array(real)


def agree(ran: Result, draws: int, ends: float) -> None:
    """Draw by draw within 3 % of the step, and the ends of the interval within a share of it."""
    first, real = simulated(ran, draws)
    step = ran.timeline.seconds
    assert real == pytest.approx(first, abs=0.03 * step)
    both = (np.quantile(of, intervals.WITHIN) for of in (real, first))
    assert next(both) == pytest.approx(next(both), abs=ends * step)
    assert real.std() > 0.03 * step


def test_first_order_is_what_a_few_simulations_find(ran):
    agree(ran, 6, 0.01)


@pytest.mark.slow
def test_first_order_is_what_200_simulations_find(ran):
    agree(ran, 200, 0.01)


def test_the_interval_is_in_the_summary_and_the_same_each_time(ran):
    low, high = ran.summary["interval_s"]
    assert low < ran.timeline.seconds < high
    assert ran.summary["interval_s"] == run(recipe_file.parse(JOB)).summary["interval_s"]
    other = run(recipe_file.parse(JOB | {"simulation": {"seed": 7}})).summary["interval_s"]
    assert other != [low, high]
    assert other == pytest.approx([low, high], rel=0.02)


def test_prices_that_are_off_by_nothing_leave_what_is_assumed(ran, monkeypatch):
    """And on one GPU at boost clock the range of norms: eight tenths of each side of it."""
    monkeypatch.setattr(intervals, "residuals", dict)
    low, high = run(recipe_file.parse(JOB)).summary["interval_s"]
    assert 0 < high - low < 0.05 * ran.timeline.seconds
    one = {"cluster": {"topology": "dgx_h100", "gpus": 1}, "simulation": {"clock": "boost"}}
    boost = run(recipe_file.parse(JOB | one | {"parallelism": {}}))
    step, norms = boost.timeline.seconds, critical_path(boost.timeline).seconds["norm"]
    _, least, most = ranges()["kernels.norm"]
    expected = [step + 0.8 * norms * (end - 1.0) for end in (least, most)]
    assert boost.summary["interval_s"] == pytest.approx(expected, abs=0.05 * norms)


def test_every_assumed_value_is_carried_to_the_step(ran):
    """Those of attention and the host by rules of their own, which other tests compare."""
    found = {of.name for of in ends(ran.machine, ran.cluster.gpu, ran.timeline.graph.works)}
    host = issued(ran.timeline.graph).keys()
    assert found | {f"attention.{name}" for name in RULES} | host == ranges().keys()


def test_only_values_that_move_a_price_have_ends(ran):
    gpu, works = ran.cluster.gpu, ran.timeline.graph.works
    found = {of.name.partition(".")[0] for of in ends(ran.machine, gpu, works)}
    assert found == {"power", "gpu", "communication", "kernels"}
    boost = replace(ran.machine, limits=None)
    others = [of.name for of in ends(boost, gpu, works)]
    assert others == ["communication.contention", "gpu.spread", "kernels.norm"]
    stated = {**gpu.costs, "communication": {"contention": 0.7}}
    known = ends(boost, replace(gpu, spread=0.04, costs=stated), works)
    assert [of.name for of in known] == ["kernels.norm"]


def test_memory_bandwidth_is_taken_while_data_moves():
    """Beside a kernel of 10 s data moves for 4 s; it takes a fifth of the bandwidth, and 25 SMs."""
    b = Builder()
    kernel = b.add("kernel", 0, "compute", Fixed(10.0))
    b.join([b.add("gather", 0, "dp", Communication("all_gather", 8.0, (0, 1), "dp"))])
    graph = b.graph()
    timeline = Timeline(graph, np.array([0.0, 0.0]), np.array([10.0, 8.0]))
    machine = replace(ideal(graph), size=np.array([0.0, 8.0]), speed=np.array([np.inf, 2.0]),
                      hbm=np.array([0.0, 0.2]), sms=np.array([0, 25]), gpu_sms=100)  # fmt: skip
    (found,) = taken(timeline, machine, np.array([kernel]))
    assert found == pytest.approx(0.2 * 0.75 * 4.0 / 10.0)


def test_people_read_the_interval_and_the_nearest_runs(ran):
    """In the terminal, in a notebook and on the page of the run."""
    low, high = (units.seconds(end) for end in ran.summary["interval_s"])
    first = ran.summary["nearest_measured"][0]
    rows = dict(summary_rows(ran.summary))
    named = table(ran.summary["nearest_measured"], *NEAREST).cells()[0]
    assert rows["80 % interval"] == f"{low} to {high}"
    assert named == [first["run"], first["family"], f"{first['error']:+.1%}"]
    assert f"{low} to {high}" in ran.summary._repr_html_()
    page = report.of_run("run", ran.timeline, ran.summary)
    assert f"80 % interval of the step time: {low} to {high}." in page
    assert f"{first['run']}, {100 * first['error']:+.1f} %" in page
