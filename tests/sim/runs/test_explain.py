"""What load adds to a step: against steps in which one effect at a time is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.machine import cluster as clusters
from sim.recipe.recipe import Recipe
from sim.runs.explain import EFFECTS, Explained, explain
from sim.runs.run import run
from sim.runs.shared import cluster_of
from tests.recipes import parsed

FLEET = {"gpu_spread": 0.05, "seed": 3}


def recipe(*slow: dict[str, Any], gpus: int = 2, **simulation: Any) -> Recipe:
    model = {"layers": 4, "hidden": 4096, "heads": 32, "vocab": 1024, "sequence": 4096}
    model |= {"attention": "flash2", "dropout": 0.0} | simulation.pop("model", {})
    own = {"topology": simulation.pop("topology", "dgx_h100"), "training": {"micro_batch": 2}}
    own |= {"simulation": simulation, "gpus": gpus, "bucket_mb": 100.0}
    return parsed(model, 8 * gpus, *slow, **own)


def seconds(of: Recipe) -> float:
    return run(of).timeline.seconds


@pytest.fixture(scope="module")
def whole() -> Explained:
    return explain(recipe())


def test_all_effects_together_are_the_step(whole: Explained) -> None:
    assert tuple(whole.added) == tuple(EFFECTS)
    assert whole.predicted == pytest.approx(seconds(recipe()), rel=1e-12)
    assert whole.added["cap"] == 0.0
    assert all(whole.added[name] > 1e-4 for name in ("sustained", "attention", "overlap", "spread"))


@pytest.mark.slow
def test_each_effect_is_what_its_absence_saves(whole: Explained) -> None:
    """The last ones by the switches of a recipe, the first by a cluster without."""
    spread = seconds(recipe()) - seconds(recipe(spread=False))
    assert whole.added["spread"] == pytest.approx(spread, rel=1e-9)
    alone = run(recipe(), cluster=clusters.undisturbed(clusters.alike(cluster_of(recipe()))))
    overlap = seconds(recipe(spread=False)) - alone.timeline.seconds
    assert whole.added["overlap"] == pytest.approx(overlap, rel=1e-9)
    boost = recipe(model={"attention": "cudnn"}, clock="boost")
    bare = run(boost, cluster=clusters.undisturbed(cluster_of(boost)))
    assert whole.boost == pytest.approx(bare.timeline.seconds, rel=1e-12)


def test_a_lower_cap_adds_to_what_the_rated_board_takes(tmp_path: Path, whole: Explained) -> None:
    path = tmp_path / "own.toml"
    path.write_text('base = "dgx_h100"\n[gpu.power]\ncap = "500 W"\n', encoding="utf-8")
    capped = explain(recipe(topology=str(path)))
    assert capped.boost == pytest.approx(whole.boost, rel=1e-12)
    for name in ("sustained", "attention"):
        assert capped.added[name] == pytest.approx(whole.added[name], rel=1e-9)
    assert capped.added["cap"] > 0.02 * capped.boost


def test_one_gpu_with_the_usual_kernel_has_its_clock_alone() -> None:
    found = explain(recipe(gpus=1, model={"attention": "cudnn"}))
    assert [name for name, added in found.added.items() if added] == ["sustained"]
    at_boost = explain(recipe(gpus=1, model={"attention": "cudnn"}, clock="boost"))
    assert set(at_boost.added.values()) == {0.0}


def test_a_drawn_fleet_is_the_spread() -> None:
    found = explain(recipe(FLEET))
    drawn = seconds(recipe(FLEET)) - seconds(recipe(spread=False))
    assert found.added["spread"] == pytest.approx(drawn, rel=1e-9)
