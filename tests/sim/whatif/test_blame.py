"""Stragglers of simulated steps: against the same recipe without what was put wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.engine import simulate
from sim.graph import Compute
from sim.recipe import recipe_file
from sim.runs.run import Result
from sim.whatif import edited, rank_matrix, stragglers
from sim.whatif.stragglers import Blame
from tests.recipes import NARROW as MODEL
from tests.recipes import ran
from traincast.commands.parts.blame import figures
from traincast.main import main

pytestmark = pytest.mark.slow


def simulated(*slow: dict[str, Any], gpus: int = 4, steps: int = 1, **way: Any) -> Result:
    simulation, model = {"steps": steps, "fold": way.pop("fold", "auto")}, way.pop("model", {})
    batch = 4 * way.get("dp", 1)
    return ran(MODEL | model, batch, *slow, gpus=gpus, simulation=simulation, **way)


def blame(of: Result) -> Blame:
    ramps = of.recipe.ramps
    return stragglers(of.timeline, of.machine, of.cluster, of.job, ramps=ramps)


ALIKE = {
    "uneven stages": {"pp": 4},
    "replicas": {"gpus": 8, "pp": 4, "dp": 2, "fold": "none"},
    "tensor parallel": {"tp": 2, "dp": 2, "fold": "none"},
    "ring attention": {"cp": 2, "dp": 1, "gpus": 2, "fold": "none"},
    "ring attention in pipelines": {"cp": 4, "pp": 2, "gpus": 8, "fold": "none"},
    "all as slow": {"tables": ({"compute": 1.3},), "pp": 4},
}


@pytest.mark.parametrize("name", ALIKE)
def test_where_no_rank_is_slow_there_is_no_slowdown(name: str) -> None:
    """Exactly: embedding and head, uneven as they are, are nobody's fault."""
    keys = dict(ALIKE[name])
    found = blame(simulated(*keys.pop("tables", ()), **keys))  # type: ignore[misc, call-overload]
    assert found.slowdown == 1.0
    for table in (found.by_rank, found.by_stage, found.by_replica, found.by_step):
        assert {*table.values()} == {1.0}
    assert found.by_kind == {}


SLOW = {
    "gpu": ({"rank": 2, "compute": 1.3}, {"gpus": 8, "pp": 4, "dp": 2}, (2, 1, 0)),
    "pipeline": ({"rank": 2, "compute": 1.3}, {"pp": 4}, (2, 2, 0)),
    "tp": ({"rank": 5, "compute": 1.5}, {"gpus": 8, "tp": 2, "dp": 2, "pp": 2}, (5, 1, 0)),
    "ring": ({"rank": 1, "compute": 1.5}, {"gpus": 4, "cp": 2, "pp": 2}, (1, 0, 0)),
    "stall": ({"rank": 3, "stall": "5 ms"}, {"gpus": 8, "pp": 4, "dp": 2}, (3, 1, 1)),
    "link": ({"rank": 8, "link": "ib", "bandwidth": 0.1}, {"gpus": 16, "dp": 16}, (8, 0, 8)),
}


@pytest.mark.parametrize("name", SLOW)
def test_one_slow_rank_is_blamed(name: str) -> None:
    """The whole slowdown, that against a run without it, is its rank's, stage's and replica's."""
    table, keys, (rank, stage, replica) = SLOW[name]
    found = blame(simulated(table, **keys))  # type: ignore[arg-type]
    healthy = simulated(**keys).timeline.seconds  # type: ignore[arg-type]
    slow = simulated(table, **keys).timeline.seconds / healthy  # type: ignore[arg-type]
    assert slow > 1.01
    assert found.ideal_s == pytest.approx(healthy, rel=1e-9)
    assert found.slowdown == pytest.approx(slow, rel=1e-9)
    for blamed, who in (
        (found.by_rank, rank),
        (found.by_stage, stage),
        (found.by_replica, replica),
    ):
        assert next(iter(blamed)) == who
        assert blamed[who] == pytest.approx(slow, rel=1e-9)
        assert all(s == pytest.approx(1.0, rel=1e-9) for k, s in blamed.items() if k != who)


def test_what_was_wrong_is_named() -> None:
    slow = blame(simulated({"rank": 1, "compute": 1.3}, tp=2, dp=2))
    assert next(iter(slow.by_kind)) == "gemm"
    assert "pauses" not in slow.by_kind
    assert "links" not in slow.by_kind
    paused = blame(simulated({"rank": 1, "stall": "1 ms"}, tp=2, dp=2))
    link = {"rank": 1, "link": "nvlink", "bandwidth": 0.2}
    assert [*paused.by_kind] == ["pauses"]
    assert [*blame(simulated(link, tp=2, dp=2)).by_kind] == ["links"]


def test_a_pause_of_one_step_is_blamed_on_that_step() -> None:
    found = blame(simulated({"rank": 1, "stall": "1 ms", "step": 1}, dp=4, steps=3))
    assert next(iter(found.by_step)) == 1
    assert found.by_step[0] == pytest.approx(1.0, rel=1e-9)
    assert found.by_step[2] == pytest.approx(1.0, rel=1e-9)


def test_of_several_steps_the_figures_are_those_of_the_steady_state() -> None:
    """Steps that overlap are shorter than the first, from which the step time leaves it out."""
    keys = {"pp": 4, "training": {"global_batch": 8, "clip": "post"}, "steps": 4}
    healthy, slow = simulated(**keys), simulated({"rank": 2, "compute": 1.3}, **keys)
    step, usual = (of.summary["step_time_s"] for of in (slow, healthy))
    assert healthy.summary["steps"]["ends_s"][0] > 1.001 * usual
    found = blame(slow)
    assert found.ideal_s == pytest.approx(usual, rel=1e-9)
    assert found.slowdown == pytest.approx(step / usual, rel=1e-9)
    assert found.by_rank[2] == pytest.approx(step / usual, rel=1e-9)


def test_experts_of_an_uneven_load_are_stragglers() -> None:
    """In the ideal step each rank's experts get the mean of their ranks' seconds."""
    experts = {"experts": 4, "topk": 1, "load": {"kind": "histogram", "counts": [5, 1, 1, 1]}}
    result = simulated(dp=4, ep=4, model=experts)
    found = blame(result)
    assert next(iter(found.by_rank)) == 0
    assert found.slowdown > 1.01


def test_noise_is_measured_against_its_mean() -> None:
    """Ranks of one noise each are as fast in the ideal step as their own kernels on the mean."""
    result = simulated({"noise": 0.2}, pp=4)
    graph, machine = result.timeline.graph, result.machine
    ideal = blame(result).ideal_s
    without = simulated(pp=4).timeline.seconds
    assert ideal == pytest.approx(without, rel=0.03)
    compute = np.array([isinstance(work, Compute) for work in graph.works])[graph.work]
    assert machine.factor is not None
    assert machine.factor[compute].std() > 0.1


def test_the_matrix_has_a_cell_for_each_simulated_replica_and_pipeline_rank() -> None:
    result = simulated({"rank": 5, "compute": 1.5}, gpus=8, tp=2, dp=2, pp=2)
    rows, columns, values = rank_matrix(blame(result), result.job)
    assert (rows, columns) == ([0, 1], [0, 1])
    assert np.unravel_index(values.argmax(), values.shape) == (0, 1)  # rank 5: tp 1, dp 0, pp 1
    assert (np.sort(values.ravel())[:3] == 1.0).all()


def test_remove_stragglers_takes_slow_ranks_out() -> None:
    result = simulated({"rank": 2, "compute": 1.3}, gpus=8, pp=4, dp=2)
    changed = edited(result.timeline.graph, result.machine, "remove stragglers")
    healthy = simulated(gpus=8, pp=4, dp=2).timeline.seconds
    assert simulate(*changed).seconds == pytest.approx(healthy, rel=1e-9)


def test_of_many_ranks_each_is_blamed_as_its_replica_and_stage_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The approximation of the study: the lesser of both, which finds one slow rank too."""
    result = simulated({"rank": 2, "compute": 1.5}, dp=2, pp=2)
    each = blame(result)
    monkeypatch.setattr(sys.modules["sim.whatif.stragglers"], "MOST", 3)
    found = blame(result)
    assert found.by_rank == pytest.approx(each.by_rank)
    assert next(iter(found.by_rank)) == 2


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        recipe_file.dump(simulated({"rank": 2, "compute": 1.5}, dp=2, pp=2).recipe),
        encoding="utf-8",
    )
    with pytest.raises(SystemExit) as exit_:
        main(["run", str(path), "--stragglers", "--json", "--out", str(tmp_path / "out")])
    assert exit_.value.code == 0
    found = json.loads(capsys.readouterr().out)["stragglers"]
    assert next(iter(found["by_rank"])) == "2"
    assert found["matrix"]["replicas"] == [0, 1]
    assert (tmp_path / "out" / "stragglers.png").stat().st_size > 1000
    with pytest.raises(SystemExit):
        main(["run", str(path), "--stragglers"])
    assert "rank 2" in capsys.readouterr().out
    path.write_text(recipe_file.dump(simulated(dp=2, pp=2).recipe), encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["run", str(path), "--stragglers"])
    assert "no rank, link or pause makes this step longer" in capsys.readouterr().out


def test_each_rank_of_a_small_step_is_asked_about_by_itself() -> None:
    """Of two ranks as slow, each alone; in a large step they are one row, and cost more."""
    slow = {"rank": [4, 5], "compute": 1.5}
    folded = simulated(slow, gpus=8, tp=2, dp=4)
    assert len(folded.timeline.graph.ranks()) < 8
    found = figures(folded, lambda *_: None)
    whole = blame(simulated(slow, gpus=8, tp=2, dp=4, fold="none"))
    assert found["by_rank"] == {str(rank): slow for rank, slow in whole.by_rank.items()}
    assert found["stands_for"] == {}
