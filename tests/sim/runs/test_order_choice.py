"""A searched schedule's step is no longer than that of any order made by hand in its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import schedules
from schedules import Plan
from schedules.search import by_hand
from schedules.search.choice import held
from sim.analysis.steps import steady
from sim.engine import simulate
from sim.graph import Communication
from sim.machine import cluster as clusters
from sim.machine.collectives import alone, traffic
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.runs import order_choice
from sim.runs.kept import Kept
from sim.runs.run import job_of, prepare, run
from sim.runs.slowest import with_slowest
from sim.runs.stage_times import stage_seconds

MODEL = {
    "layers": 6, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096, "vocab": 16000,
    "sequence": 512, "attention": "flash", "position": "learned", "dropout": 0.0, "tied": True,
}  # fmt: skip
LAYERS = {1: [1, 2, 2, 1], 2: [0, 1, 1, 1, 1, 1, 1, 0]}
RANKS, MICROBATCHES = 4, 9


def recipe(name: str, p2p: str = "auto", clip: Any = True, **model: Any) -> Recipe:
    """Four ranks on two nodes, four times."""
    return recipe_file.parse(
        {
            "model": MODEL | model,
            "cluster": {"topology": "dgx_a100", "gpus": 16},
            "parallelism": {"pp": RANKS, "dp": 4, "p2p": p2p},
            "schedule": {"name": name, "layers_per_stage": LAYERS[schedules.stages_per_rank(name)]},
            "training": {
                "micro_batch": 1, "global_batch": 4 * MICROBATCHES, "dtype": "bf16", "clip": clip
            },
        }
    )  # fmt: skip


def test_each_boundary_has_the_message_of_its_route() -> None:
    """Ranks 0 and 4 share a node, 8 does not; a V comes back the same way, and its turn is free."""
    cluster = clusters.load("dgx_a100", 16)
    for name in ("zb_1p", "zb_v"):
        job = job_of(recipe("one_f_one_b" if name == "zb_1p" else "one_f_one_b_v"), cluster)
        inside, between = (
            alone(cluster, traffic(cluster, Communication("p2p", job.boundary_bytes, ends, "pp")))
            for ends in ((0, 4), (8, 4))
        )
        down = [inside, between, inside]
        found = stage_seconds(job, cluster)["p2p"]
        assert found == (down if name == "zb_1p" else [*down, 0.0, *reversed(down)])
        assert between > 2 * inside


def step(of: Recipe, plan: Plan) -> float:
    """Seconds of a step in this order, as a run has them."""
    cluster = clusters.load("dgx_a100", 16)
    job = replace(job_of(of, cluster), plan=plan)
    _, graph, machine = prepare(job, cluster)
    machine = with_slowest(job, cluster.gpu.spread, graph, machine)
    found = steady(simulate(graph, machine), *of.ramps)
    return found.seconds / found.steps


def check(of: Recipe, orders: list[Plan], limit: float) -> None:
    found = run(of)
    assert found.summary["step_time_s"] == step(of, found.job.plan)
    for other in orders:
        if held(other) <= limit:
            assert found.summary["step_time_s"] <= step(of, other)


def test_a_searched_step_is_no_longer_than_one_made_by_hand() -> None:
    """ZB-H1, which fits and is nearest; the rest is slow."""
    check(recipe("zb_1p"), by_hand.one_stage(RANKS, MICROBATCHES)[:1], 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "p2p", "clip", "tied"),
    [
        ("zb_1p", "direction", "post", True),
        ("zb_1p", "pair", "post", False),
        ("zb_2p", "direction", "post", True),
        ("zb_2p", "pair", True, False),
        ("zb_v", "direction", True, False),
        ("zb_v", "pair", "post", True),
    ],
)
def test_every_searched_step_is_no_longer_than_one_made_by_hand(
    name: str, p2p: str, clip: Any, tied: bool
) -> None:
    orders = (by_hand.in_a_v if name == "zb_v" else by_hand.one_stage)(RANKS, MICROBATCHES)
    check(recipe(name, p2p, clip, tied=tied), orders, {"zb_1p": 4}.get(name, 8))


@pytest.mark.slow
def test_batched_exchanges_leave_a_searched_order_that_runs() -> None:
    """No slower than ZB-H1, which is the only one made by hand that runs besides 1F1B."""
    batched = recipe("zb_2p", "batched")
    check(batched, by_hand.one_stage(RANKS, MICROBATCHES)[::2], 8)


@pytest.mark.parametrize("k", [0, 1])
def test_the_order_is_taken_whose_simulated_step_is_shortest(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of two it is, if the search's timing does not find one of them much longer."""
    of, cluster = recipe("zb_1p", vocab=8000 + k), clusters.load("dgx_a100", 16)
    two = of.plans(stage_seconds(job_of(of, cluster), cluster))[:2]
    monkeypatch.setattr(order_choice, "_step", lambda job, *_: job.plan != two[k])
    for margin, plan in ((1.0, two[k]), (-1.0, two[0])):
        monkeypatch.setattr(order_choice, "MARGIN", margin)
        monkeypatch.setattr(order_choice, "_known", Kept[Plan](1))
        assert job_of(of, cluster).plan == plan


def test_an_order_is_searched_once_for_like_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Recipe] = []
    plan, cluster = by_hand.one_stage(RANKS, MICROBATCHES)[0], clusters.load("dgx_a100", 16)
    monkeypatch.setattr(order_choice, "_searched", lambda *a: made.append(a[0]) or plan)
    for _ in range(2):
        job_of(recipe("zb_2p", vocab=12345), cluster)
    assert len(made) == 1
    job_of(recipe("zb_2p", "direction", vocab=12345), cluster)
    job_of(recipe("zb_2p", clip=False, vocab=12345), cluster)
    assert len(made) == 3
