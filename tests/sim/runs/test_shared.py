"""What runs of one process share is what each would make for itself, and follows its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.builder import programs
from sim.builder.stage import stage_programs
from sim.machine.assumed import assuming
from sim.recipe import recipe_file
from sim.runs import sweep
from sim.runs.kept import Kept
from sim.runs.shared import cluster_of

RECIPE = """
[model]
layers = 4
hidden = 256
heads = 4
vocab = 512
sequence = 256
[cluster]
topology = "./mine.toml"
gpus = 16
[parallelism]
tp = 2
pp = 2
[training]
global_batch = 16
"""
TOPOLOGY = 'name = "mine"\nbase = "dgx_h100"\n'


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(TOPOLOGY)
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_cluster_is_made_once_for_a_topology(recipe: Path) -> None:
    """Another text in its file is another cluster, and so is another assumption or effect."""
    of = recipe_file.load(recipe)
    one = cluster_of(of)
    assert cluster_of(recipe_file.load(recipe, {"parallelism.tp": 1})) is one
    recipe.with_name("mine.toml").write_text(TOPOLOGY + '[gpu]\nmemory = "40 GB"\n')
    assert cluster_of(of).gpu.memory == 40e9
    assert cluster_of(recipe_file.load(recipe, {"simulation.spread": False})).gpu.spread == 0.0
    boost = cluster_of(recipe_file.load(recipe, {"simulation.clock": "boost"}))
    assert "power" not in boost.gpu.costs
    assert cluster_of(recipe_file.load(recipe, {"cluster.gpus": 8})).gpus == 8
    with assuming("gpu.spread", 0.25):
        assert cluster_of(of).gpu.spread == 0.25


def test_what_is_shared_changes_no_figure(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a sweep, in which each but the first meets what others made."""
    some = [{"parallelism.zero": 1, "parallelism.bucket_mb": size} for size in (1, 2)]
    rows = [sweep.figures(recipe, of) for of in some]
    assert rows[0]["step_time_s"] != rows[1]["step_time_s"] is not None
    monkeypatch.setattr(Kept, "of", lambda self, key, find: find())
    monkeypatch.setattr(programs, "_stage_programs", stage_programs)
    assert [sweep.figures(recipe, of) for of in some] == rows
