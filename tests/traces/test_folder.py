"""The folder of a run: what is replaced, what stays, and that a failure changes nothing."""

import json
from pathlib import Path

import pytest

from sim import plots
from sim.runs.run import Result, run
from traces.own import folder

RECIPE = """
model = { name = "$x^$ 模", layers = 4, hidden = 256, heads = 8, vocab = 1000, sequence = 128 }
cluster = { topology = "dgx_a100", gpus = 4 }
parallelism = { pp = 4 }
training.global_batch = 4
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Result:
    file = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    file.write_text(RECIPE)
    return run(file)


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()
    }


@pytest.mark.slow
def test_files_of_the_user_stay_and_stale_ranks_go(result, tmp_path):
    (tmp_path / "traces").mkdir()
    mine = {"notes.txt": b"a", "traces/notes.txt": b"b", "traces/rank_mine.json.gz": b"c"}
    stale = {"traces/rank7.json.gz": b"d", "traces/rank0.json.gz": b"e", "summary.json": b"f"}
    for name, text in (mine | stale).items():
        (tmp_path / name).write_bytes(text)
    files = folder.write(result, tmp_path, ranks=[0, 2])
    found = contents(tmp_path)
    assert mine.items() <= found.items()
    ranks = {"traces/rank0.json.gz", "traces/rank2.json.gz"}
    assert found.keys() == mine.keys() | ranks | {*folder.NAMES} - {"traces"}
    assert all(found[name] != text for name, text in stale.items() if name in found)
    assert json.loads(found["summary.json"])["step_time_s"] == result.timeline.seconds
    assert files.paths == tuple(tmp_path / name for name in folder.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_failure_changes_nothing(before, result, tmp_path, monkeypatch):
    out = tmp_path / "deep/out"
    if before:
        folder.write(result, out)
    old = contents(tmp_path)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plots, "memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        folder.write(result, out, ranks=[1])
    assert contents(tmp_path) == old
    assert before or list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ranks": [9]}, "rank 9 was not simulated"),
        ({"window": (50.0, 60.0)}, "the window 50:60 begins after the step has ended"),
    ],
)
def test_what_is_not_there_is_not_written(options, sentence, result, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        folder.write(result, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["memory.png", "summary.json", "traces/rank0.json.gz"])
def test_a_folder_where_a_file_belongs_is_refused(name, tmp_path):
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="it is a folder"):
        folder.check(tmp_path)


def test_a_file_where_the_traces_belong_is_refused(tmp_path):
    (tmp_path / "traces").write_text("mine")
    with pytest.raises(ValueError, match="it is a file"):
        folder.check(tmp_path)
    folder.check(tmp_path / "new/out")
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


@pytest.mark.slow
def test_a_name_is_no_formula(result, tmp_path, monkeypatch):
    titles = []
    draw = plots.timeline
    monkeypatch.setattr(
        plots, "timeline", lambda *a, title, **k: titles.append(title) or draw(*a, title=title, **k)
    )
    folder.write(result, tmp_path)
    assert titles[0].startswith(r"\$x^\$ 模, 1F1B: one step of")


@pytest.mark.slow
def test_a_picture_says_how_many_steps_it_shows(result, tmp_path, monkeypatch, traincast):
    """And how long one takes, not all; so does the table."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    titles = []
    draw = plots.memory
    monkeypatch.setattr(
        plots, "memory", lambda *a, title, **k: titles.append(title) or draw(*a, title=title, **k)
    )
    line = ("run", tmp_path / "recipe.toml", "--set", "simulation.steps=3", "--out", tmp_path / "o")
    code, out, _ = traincast(*line)
    assert code == 0
    seconds = json.loads((tmp_path / "o/summary.json").read_text())["step_time_s"]
    assert titles[0].endswith(f": 3 steps, {seconds:.4g} s each in the steady state")
    assert "3; the figures cover 1 of them" in out
    line = ("run", tmp_path / "recipe.toml", "--set", "schedule.name=pipedream")
    assert "rank 0: 1, rank 1: 1, rank 2: 1, rank 3: 1" not in traincast(*line)[1]
    assert "weights, updates old" in traincast(*line)[1]
