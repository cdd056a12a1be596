"""The expected slowest GPU: against fleets whose GPUs are drawn, all ranks simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.engine import simulate
from sim.machine import cluster as clusters
from sim.machine.assumed import ranges
from sim.machine.cluster import Cluster
from sim.machine.spread import slowed
from sim.machine.variants import variant
from sim.perturbations import perturbed
from sim.recipe.recipe import Recipe
from sim.runs.run import job_of, prepare, run
from sim.runs.slowest import together, with_slowest
from tests.recipes import parsed

SIGMA, DRAWS = 0.05, 40
WAYS: dict[str, dict[str, Any]] = {
    "tp": {"tp": 8, "sp": True},
    "ddp": {"dp": 8},
    "fsdp": {"dp": 8, "fsdp": {"kind": "fsdp2"}},
    "1f1b": {"pp": 8},
    "mixed": {"tp": 2, "dp": 2, "pp": 4},
    "zb_h1": {"pp": 4, "dp": 2, "name": "zb_h1"},
    "hsdp": {"pp": 2, "dp": 4, "fsdp": {"kind": "fsdp2", "shard": 2}},
}


def recipe(*drawn: dict[str, Any], m: int = 8, **way: Any) -> Recipe:
    """Return a job whose steps are mostly products."""
    model = {"layers": 8, "hidden": 4096, "heads": 32, "vocab": 1024, "sequence": 2048}
    own = {"schedule": {"name": way.pop("name", "one_f_one_b")}, "training": {"micro_batch": 4}}
    batch = 4 * (m if "pp" in way else 1) * way.get("dp", 1)
    return parsed(model | {"dropout": 0.0}, batch, *drawn, **own, **way)


def cluster(gpus: int) -> Cluster:
    """Return GPUs at boost clock."""
    return clusters.at_boost(clusters.load("dgx_h100", gpus))


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_drawn_fleets_take_the_expected_time(name: str) -> None:
    """The mean of drawn fleets, without folding, within 1 % of the step."""
    plain = recipe(**WAYS[name])
    job, of = job_of(plain), cluster(plain.cluster.gpus)
    _, graph, machine = prepare(job, of, fold=False)
    took = []
    for seed in range(DRAWS):
        table = {"gpu_spread": SIGMA, "seed": seed}
        fleet = perturbed(recipe(table, **WAYS[name]), job).machine(graph, machine)
        took.append(simulate(graph, fleet).seconds)
    alike = simulate(graph, machine).seconds
    expected = simulate(graph, with_slowest(job, SIGMA, graph, machine)).seconds
    assert expected > 1.003 * alike
    assert abs(expected - np.mean(took)) < 0.01 * alike


def test_one_slow_gpu_holds_up_all() -> None:
    """Of two replicas, of which seed 9 slows one, 10 both, 11 none."""
    way = {"dp": 2, "overlap_grad_reduce": False}
    seconds = {
        seed: run(recipe({"gpu_spread": [1.0, 1.2], "seed": seed}, **way)).timeline.seconds
        for seed in (9, 10, 11)
    }
    slow = run(recipe({"gpu_spread": [1.2]}, **way)).timeline.seconds
    fast = run(recipe({"gpu_spread": [1.0]}, **way)).timeline.seconds
    assert fast < 0.9 * slow
    assert list(seconds.values()) == pytest.approx([slow, slow, fast], rel=1e-9)
    alike = run(recipe(**way, simulation={"spread": False})).timeline.seconds
    assert fast == pytest.approx(alike, rel=1e-12)


def test_slow_gpus_keep_their_clock() -> None:
    """A fleet of equally slow GPUs takes as long as the factor on prices says, under a cap too."""
    plain = recipe(tp=2, sp=True)
    job, of = job_of(plain), clusters.load("dgx_h100", 2)
    _, graph, machine = prepare(job, of)
    drawn = perturbed(recipe({"gpu_spread": [1.1]}, tp=2, sp=True), job).machine(graph, machine)
    priced = slowed(machine, graph.works, 1.1)
    one, two = simulate(graph, drawn).seconds, simulate(graph, priced).seconds
    assert one == pytest.approx(two, rel=1e-3)
    assert one > 1.05 * simulate(graph, machine).seconds


def test_folded_and_whole_have_the_same_slowest() -> None:
    way = {"tp": 2, "dp": 2, "pp": 2}
    folded, whole = (
        run(recipe(m=4, **way, simulation={"fold": fold})) for fold in ("auto", "none")
    )
    assert len(whole.timeline.graph.ranks()) == 8 > len(folded.timeline.graph.ranks())
    assert folded.timeline.seconds == pytest.approx(whole.timeline.seconds, rel=1e-9)
    assert (
        folded.timeline.seconds
        > run(recipe(m=4, **way, simulation={"spread": False})).timeline.seconds
    )


@pytest.mark.parametrize(
    ("way", "ranks"),
    [
        ({"tp": 2, "dp": 4, "pp": 2}, 2),
        ({"tp": 2, "dp": 4, "pp": 2, "fsdp": {"kind": "fsdp2"}}, 8),
        ({"tp": 2, "dp": 4, "pp": 2, "fsdp": {"kind": "fsdp2", "shard": 2}}, 4),
    ],
)
def test_ranks_that_meet_in_every_layer(way: dict[str, Any], ranks: int) -> None:
    assert together(job_of(recipe(**way))) == ranks


def test_what_is_between_steps_is_added() -> None:
    plain = run(recipe(dp=2)).summary
    later = run(recipe(dp=2, simulation={"between_ms": 50.0})).summary
    assert later["step_time_s"] == plain["step_time_s"] + 0.05
    assert later["mfu"] == pytest.approx(plain["mfu"] * plain["step_time_s"] / later["step_time_s"])


def test_attention_assumed_as_it_is_keeps_the_slowest() -> None:
    """Else an interval would take the fleet's slowness for a faster kernel."""
    ran = run(recipe(dp=2, topology="dgx_b200"))
    name = "attention.cudnn_b200"
    gpu, works, usual = ran.cluster.gpu, ran.timeline.graph.works, ranges()[name]
    assert ran.machine.slowest > 1.0
    assert variant(ran.machine, gpu, works, name, usual.value) is ran.machine
    assert variant(ran.machine, gpu, works, name, usual.high) is not ran.machine
