"""Sweeps: rows against single runs, interruption, resumption, what cannot run.

``TRAINCAST_KILLS=10 pytest tests/sim/runs/test_sweep.py`` kills a sweep so often.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from io import BytesIO
from math import fsum
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from schedules.input_error import InputError
from sim import files
from sim.recipe import recipe_file
from sim.runs import sweep, workers
from sim.runs.row import row
from sim.runs.run import run
from traincast.commands.parts import sweeping
from traincast.main import main

KILLS = int(os.environ.get("TRAINCAST_KILLS", "3"))
RECIPE = """
model = { layers = 4, hidden = 256, heads = 4, vocab = 512, sequence = 256 }
cluster = { topology = "dgx_h100", gpus = 2 }
parallelism.pp = 2
training.global_batch = 2
perturbations = [{ rank = 1, compute = 1.0 }]
"""
SEVERITY = "perturbations[0].compute"
VARY: dict[str, list[object]] = {
    SEVERITY: [1.0, 1.5],
    "schedule.name": ["one_f_one_b", "zb_h1", "dualpipe"],
}


@pytest.mark.slow
def test_rows_are_those_of_single_runs(recipe: Path, tmp_path: Path) -> None:
    """Severity times schedule; a row for each, in order, with figures of its own run."""
    out = tmp_path / "s.parquet"
    rows = sweep.sweep(recipe, VARY, out, jobs=1)
    assert [(r[SEVERITY], r["schedule.name"]) for r in rows] == [
        (s, n) for s in VARY[SEVERITY] for n in VARY["schedule.name"]
    ]
    alone = run(recipe, {SEVERITY: 1.5, "schedule.name": "zb_h1"}).summary
    assert rows[4]["step_time_s"] == alone["step_time_s"]
    assert rows[4]["peak_bytes"] == max(e["peak_bytes"] for e in alone["memory"])
    assert rows[0]["step_time_s"] < rows[3]["step_time_s"]
    table = pq.read_table(out)
    assert [{k: v for k, v in r.items() if k != "row"} for r in table.to_pylist()] == rows
    assert table["row"].to_pylist() == [*range(6)]


def test_a_row_is_of_the_summary(recipe: Path) -> None:
    """Each of its figures, of several steps whose seconds differ from those of one."""
    result = run(recipe, {"schedule.name": "pipedream", "simulation.allocator": "caching"})
    of = result.summary
    assert of["steps"]["steady"] > 0 < of["simulation"]["ops"]
    memory = of["memory"]
    assert row(result) == {
        "step_time_s": of["step_time_s"],
        "tokens_per_s": of["tokens_per_s"],
        "mfu": of["mfu"],
        "idle_share_of_step": of["bubble"]["idle_share_of_step"],
        "exposed_s": fsum(spread["mean"] for spread in of["time_s"]["exposed"].values()),
        "peak_bytes": max(entry["peak_bytes"] for entry in memory),
        "fits": max(entry["device_bytes"] for entry in memory) <= result.cluster.gpu.memory,
        "ops": of["simulation"]["ops"],
        "uncalibrated": None,
        "refused": None,
    }
    assert [*row(result)] == [*sweep.FIGURES]


@pytest.mark.slow
def test_what_is_interrupted_goes_on_to_the_same_bytes(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves, count = tmp_path / "whole.parquet", tmp_path / "halves.parquet", 0
    figures = sweep.figures
    rows = sweep.sweep(recipe, VARY, whole, jobs=1)

    def interrupted(*given: object) -> sweep.Row:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return figures(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "figures", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(recipe, VARY, halves, jobs=1)
    assert pq.read_table(halves).num_rows == 3
    count = 10  # from here on nothing interrupts
    assert sweep.sweep(recipe, VARY, halves, jobs=1) == rows
    assert count == 10 + 3  # the other three
    assert halves.read_bytes() == whole.read_bytes()


KILLED = """
import sys, time
from pathlib import Path
from sim.runs import sweep, workers
figures, sweep.EVERY, count = sweep.figures, -1.0, []
def once(*given):
    count.append(1)
    time.sleep(600 * (len(count) > 1))  # after one more row it is killed
    return figures(*given)
sweep.figures = once
vary = {"perturbations[0].compute": [1 + k / 10 for k in range(12)]}
sweep.sweep(Path(sys.argv[1]), vary, Path(sys.argv[2]), jobs=1)
"""


def rows_in(file: Path) -> int:
    """Rows of a file that may be replaced at any moment, so opened once; none of no file."""
    return pq.read_table(BytesIO(file.read_bytes())).num_rows if file.exists() else 0


@pytest.mark.slow
def test_what_is_killed_again_ends_in_the_same_bytes(recipe: Path, tmp_path: Path) -> None:
    """By SIGKILL, each time after a further row has been written."""
    vary: dict[str, list[object]] = {SEVERITY: [1 + k / 10 for k in range(12)]}
    whole, out = tmp_path / "whole.parquet", tmp_path / "killed/s.parquet"
    rows = sweep.sweep(recipe, vary, whole, jobs=1)
    for had in range(KILLS):
        run_ = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(recipe), str(out)],
            cwd=Path(__file__).parents[3],
            start_new_session=True,
        )
        while run_.poll() is None and rows_in(out) <= had:
            time.sleep(0.01)
        os.killpg(run_.pid, signal.SIGKILL)
        assert run_.wait() == -signal.SIGKILL
        assert rows_in(out) == had + 1
    assert sweep.sweep(recipe, vary, out, jobs=1) == rows
    assert out.read_bytes() == whole.read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["s.parquet"]


def test_a_sweep_has_its_file_to_itself(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    with files.alone(out), pytest.raises(InputError, match="another process writes"):
        sweep.sweep(recipe, {SEVERITY: [1.0]}, out, jobs=1)
    assert not out.exists()


@pytest.mark.slow
def test_processes_give_the_same_bytes(recipe: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.parquet", tmp_path / "two.parquet"
    vary: dict[str, list[object]] = {SEVERITY: [1.0, 1.2, 1.5]}
    sweep.sweep(recipe, vary, one, jobs=1)
    sweep.sweep(recipe, vary, two, jobs=2)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_gives_the_same_bytes(
    recipe: Path, tmp_path: Path, backend: str, package: str
) -> None:
    """A local cluster, in a process of its own that ends with it."""
    pytest.importorskip(package, reason=f"pip install 'traincast[{backend}]'")
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    sweep.sweep(recipe, {SEVERITY: [1.0, 1.5]}, one, jobs=1)
    line = ["sweep", str(recipe), "--vary", f"{SEVERITY}=1.0,1.5", "--out", str(other)]
    command = [sys.executable, "-m", "traincast", *line, "--backend", backend]
    alone = {**os.environ, "RAY_AUTH_MODE": "disabled"}  # no token of a cluster outside
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alone)
    if "no ray cluster answers on this machine" in done.stderr:
        pytest.skip("Ray starts within 30 s, or not at all, and this machine is too busy")
    assert done.returncode == 0, done.stderr
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (("slurm",), "--backend is ray or dask( or other)?, not 'slurm'"),
        ((None, "head:1"), "--address head:1 is of a cluster; say --backend ray or dask too"),
        (("other",), "--backend other needs a package; pip install 'traincast.other.' adds it"),
        (("dask", "127.0.0.1:1"), "no dask cluster answers at 127.0.0.1:1: .*refused"),
        (("dask", "head"), "no dask cluster answers at head: the address is not HOST:PORT"),
    ],
)
def test_clusters_that_are_not_there(
    where: tuple[str | None, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(workers.BACKENDS, "other", ("no_such_package", print))
    monkeypatch.setitem(workers.BACKENDS, "dask", ("json", print))
    with pytest.raises(InputError, match=sentence), workers.on(*where):
        pass


def test_what_cannot_run_is_a_row_with_its_reason(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "s.parquet"
    vary: dict[str, list[object]] = {"parallelism.pp": [2, 3]}
    rows = sweep.sweep(recipe, vary, out, jobs=1)
    assert rows[0]["refused"] is None
    assert "a multiple of 3 GPUs would do" in rows[1]["refused"]
    assert rows[1]["step_time_s"] is None
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "run", lambda *_: {}["nothing"])
        broken = sweep.sweep(recipe, vary, tmp_path / "b.parquet", jobs=1)
    assert broken[0]["refused"] == "a bug in traincast: KeyError: 'nothing'"
    again = sweep.sweep(recipe, vary, tmp_path / "b.parquet", jobs=1)  # bugs are tried again
    assert again == rows


def test_files_of_others_are_not_touched(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    sweep.sweep(recipe, {"training.global_batch": [2]}, out, jobs=1)
    before = out.read_bytes()
    with pytest.raises(ValueError, match="holds rows of another recipe"):
        sweep.sweep(recipe, {"training.global_batch": [4]}, out, jobs=1)
    with pytest.raises(ValueError, match="holds rows of another recipe"):
        sweep.sweep(recipe, {"training.global_batch": [2]}, out, {"model.layers": 8}, jobs=1)
    assert out.read_bytes() == before
    recipe.with_name("x.parquet").write_text("no table")
    with pytest.raises(ValueError, match="is not a Parquet file"):
        sweep.sweep(recipe, {"training.global_batch": [2]}, recipe.with_name("x.parquet"), jobs=1)


def test_keys_of_perturbations(recipe: Path) -> None:
    """Of the tables that are there, and of one more behind them."""
    tables = recipe_file.load(
        recipe,
        {SEVERITY: 1.3, "perturbations[0].rank": [0, 1], "perturbations[1].noise": 0.1},
    ).perturbations
    assert (tables[0].compute, tables[0].rank, tables[1].noise) == (1.3, (0, 1), 0.1)
    assert recipe_file.load(recipe, {"perturbations[0].rank": None}).perturbations[0].rank is None
    assert recipe_file.load(recipe).perturbations[0].compute == 1.0  # the file's own stays
    with pytest.raises(ValueError, match=r"has 1 \[\[perturbations\]\]; the next is .*\[1\]"):
        recipe_file.load(recipe, {"perturbations[2].noise": 0.1})
    for key in ("perturbations[0].computed", "perturbations[a].compute", "perturbations[0]"):
        with pytest.raises(ValueError, match=r"unknown key perturbations\[.*have rank, compute"):
            recipe_file.load(recipe, {key: 1})


def test_curves_of_step_time_by_severity() -> None:
    rows = [
        {SEVERITY: s, "schedule.name": n, "step_time_s": s * k, "refused": None}
        for s in (1.5, 1.0)
        for k, n in ((1, "a"), (2, "b"))
    ]
    rows.append({SEVERITY: 2.0, "schedule.name": "a", "step_time_s": None, "refused": "no"})
    axes = sweeping.draw(rows, [*VARY], SEVERITY).axes[0]
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn == {"a": [[1.0, 1.0], [1.5, 1.5]], "b": [[1.0, 2.0], [1.5, 3.0]]}
    assert sweeping.axis(VARY, None) == SEVERITY
    with pytest.raises(ValueError, match="a key of --vary that has numbers"):
        sweeping.axis(VARY, "schedule.name")
    with pytest.raises(ValueError, match="no key of --vary has any"):
        sweeping.axis({"schedule.name": ["a"]}, None)


@pytest.mark.slow
def test_the_command(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "s.parquet", tmp_path / "s.png"
    given = ["sweep", str(recipe), "--out", str(out), "--jobs", "1", "--vary", f"{SEVERITY}=1.0,2"]
    with pytest.raises(SystemExit) as exit_:
        main([*given, "--json", "--plot", str(plot)])
    assert exit_.value.code == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row[SEVERITY] for row in rows] == [1.0, 2.0]
    assert plot.stat().st_size > 1000
    with pytest.raises(SystemExit):
        main(given)
    assert "wrote" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit_:
        main([*given[:-1], "parallelism.pp=3", "--out", str(tmp_path / "n.parquet")])
    assert exit_.value.code == 2


@pytest.mark.slow
def test_a_relative_path_is_that_of_the_caller(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes outlive a sweep, and stand where they began."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.toml").write_text(RECIPE, encoding="utf-8")
    for folder, name in ((tmp_path, recipe.name), (other, "mine.toml")):
        monkeypatch.chdir(folder)
        rows = sweep.sweep(name, {SEVERITY: [1.0, 1.5]}, "s.parquet", jobs=2)
        assert all(row["step_time_s"] for row in rows)
