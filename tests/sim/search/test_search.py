"""The search finds what simulating everything finds, and the same however it is run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import traincast as tc
from schedules.input_error import InputError
from sim.search import searching, tried
from sim.search.search import FILE, search
from sim.search.space import space
from tests.recipes import SEARCHED as MODEL

FIX = {"parallelism.zero": 1, "parallelism.fsdp": None, "training.recompute": ["none", "full"],
       "schedule.name": ["one_f_one_b", "interleaved_1f1b"], "parallelism.cp": 1}  # fmt: skip


def written(folder: Path, text: str = MODEL) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_the_best_is_that_of_simulating_every_layout(tmp_path: Path) -> None:
    """The command ``python -m validation.search`` does this for 20 drawn spaces."""
    fix = {**FIX, "training.recompute": "none", "training.micro_batch": 2}
    path = written(tmp_path)
    found = search(path, 2, fix=fix, jobs=1)
    of = space(path, 2, {k: v if isinstance(v, list) else [v] for k, v in fix.items()})
    legal = [m for g in of.groups() for m in of.members(g) if of.legal(m)]
    every = sorted(tc.run(path, m).summary["step_time_s"] for m in legal)
    assert [row["step_time_s"] for row in found.best] == every[:10]
    assert found.gap == 0.0
    front = found.frontier
    assert all(a["step_time_s"] < b["step_time_s"] and a["peak_bytes"] > b["peak_bytes"]
               for a, b in pairwise(front))  # fmt: skip
    assert tc.run(path, found.overrides(front[0])).summary["step_time_s"] == every[0]


@pytest.mark.slow
def test_an_interrupted_search_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole, cut = written(tmp_path), tmp_path / "whole", tmp_path / "cut"
    search(path, 2, budget=6, fix=FIX, out=whole, jobs=1)
    plain, calls = tried.simulated, []

    def stopped(*args: object) -> tried.Row:
        calls.append(args)
        if len(calls) in (2, 5):
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(tried, "simulated", stopped)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(path, 2, budget=6, fix=FIX, out=cut, jobs=1)
    search(path, 2, budget=6, fix=FIX, out=cut, jobs=1)
    assert (cut / FILE).read_bytes() == (whole / FILE).read_bytes()
    assert len(calls) == 6 + 2  # none is simulated twice


@pytest.mark.slow
def test_what_was_left_out_says_why(tmp_path: Path) -> None:
    found = search(written(tmp_path), 2, budget=1, fix=FIX, jobs=1)
    assert found.counts["simulated"] == 1
    assert found.counts["budget"] > 0
    open_ = [row["bound_s"] for row in found.rows if row["outcome"] == "budget"]
    assert found.gap == 1 - min(open_) / found.best[0]["step_time_s"] > 0


@pytest.mark.slow
def test_a_deadline_takes_the_fewest_gpus_that_meet_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    times = [search(path, n, fix=FIX, jobs=1).best[0]["step_time_s"] for n in (1, 2)]
    between = sum(times) / 2
    found = search(path, [2, 1], fix=FIX, deadline=between, jobs=1)
    assert found.best[0]["cluster.gpus"] == 2
    with pytest.raises(InputError, match="can meet the deadline"):
        search(path, [1, 2], fix=FIX, deadline=times[1] / 100, jobs=1)


@pytest.mark.slow
def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    text = MODEL.replace("layers = 4", "layers = 400").replace("hidden = 64", "hidden = 8192")
    with pytest.raises(InputError, match=r"no layout on 4 GPUs fits; .* TiB on a GPU"):
        search(written(tmp_path, text), 4, jobs=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 7}, "no layout on 7 GPUs is legal"),
        ({"gpus": 0}, "must be at least 1"),
        ({"budget": 0}, "simulates nothing"),
        ({"objective": "speed"}, "no objective 'speed'"),
        ({"deadline": 0.0}, "must be above 0 s"),
        ({"deadline": 1.0, "objective": "energy"}, "deadline is for step_time"),
        ({"fix": {"parallelism.tq": 1}}, "parallelism.tq"),
        ({"fix": {"parallelism.tp": 3}}, "no layout on 4 GPUs is legal"),
        ({"objective": "tokens_per_dollar"}, r"has no table \[price\]"),
    ],
)
def test_what_no_search_can_be_made_of_is_refused(given: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        search(written(tmp_path), **{"gpus": 4, "jobs": 1, **given})
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_energy_is_between_idle_and_the_boards_cap(tmp_path: Path) -> None:
    found = search(written(tmp_path), 2, "energy", budget=4, fix=FIX, jobs=1)
    costs = [row["cost"] for row in found.best]
    assert costs == sorted(row["energy_j"] for row in found.simulated)[:10]
    for row in found.best:
        watts = row["energy_j"] / row["step_time_s"] / 2
        assert 120 < watts < 700.001  # of dgx_h100
    assert searching.BEST == 10
