"""The command ``traincast search``: its answer, its file, and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

TEXT = """
[model]
layers = 4
hidden = 64
heads = 4
vocab = 512
sequence = 4096
[cluster]
topology = "dgx_h100"
gpus = 2
[training]
global_batch = 8
"""


@pytest.mark.slow
def test_the_command_answers_in_text_and_json_and_writes_the_table(traincast, tmp_path) -> None:
    recipe, out = tmp_path / "recipe.toml", tmp_path / "found"
    recipe.write_text(TEXT)
    line = ["search", recipe, "--budget", 4, "--jobs", 1, "--out", out, "--fix", "parallelism.cp=1",
            "--fix", "parallelism.fsdp=", "--fix", "training.recompute=none"]  # fmt: skip
    code, shown, said = traincast(*line, "--plot", tmp_path / "frontier.png")
    assert (code, said) == (0, "")
    assert "4 simulated" in shown
    assert (tmp_path / "frontier.png").stat().st_size > 0
    code, shown, _ = traincast(*line, "--json")
    found = json.loads(shown)
    rows = pq.read_table(out / "search.parquet").to_pylist()
    best = found["best"][0]
    assert (
        rows[0]["step_time_s"]
        == best["step_time_s"]
        == min(row["step_time_s"] for row in rows if row["outcome"] == "simulated")
    )
    assert rows[0]["parallelism.dp"] == best["layout"]["parallelism.dp"]
    assert sum(found["counts"].values()) == len(rows)
    assert {row["training.recompute"] for row in rows} <= {"none", None}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--gpus", "2,x"], "--gpus takes numbers such as 64 or 32,64, not '2,x'"),
        (["--deadline", "soon"], "--deadline takes a time such as 5s, not 'soon'"),
        (["--fix", "tp"], "--fix takes KEY=V1,V2, such as parallelism.tp=4,8, not 'tp'"),
        (["--fix", "parallelism.tq=1"], "unknown key parallelism.tq"),
        (["--budget", "0"], "a budget of 0 simulates nothing; it must be at least 1"),
        (["--jobs", "0"], "--jobs takes a number of processes from 1 to 1,024, or -1, not 0"),
        (["--jobs", "100000000"], "--jobs takes a number of processes from 1 to 1,024"),
        (["--gpus", "7"], "no layout on 7 GPUs is legal"),
        (["--fix", "parallelism.tp=2,0"], "parallelism.tp = 0 must be at least 1"),
        (["--fix", "parallelism.tp=1,"], "every layout needs a value of parallelism.tp"),
        (["--fix", "training.recompute=maybe"], "must be 'none', 'selective' or 'full'"),
        (["--fix", "training.global_batch=16"], "a search keeps the recipe's training.global_"),
        (["--fix", "cluster.gpus=4"], "a search keeps the recipe's cluster.gpus"),
        (["--fix", "parallelism.tp=1", "--fix", "parallelism.tp=2"], "parallelism.tp twice"),
        (["--largest", ""], "no largest ''; there are micro_batch, context"),
        (["--largest", "context", "--deadline", "5s"], "leave --deadline out"),
        (["--topology", ""], "cluster.topology is empty"),
        (["--backend", "dask", "--address", ""], "--address is empty; give HOST:PORT, or leave"),
    ],
)
def test_what_cannot_be_searched_is_one_sentence(
    traincast, tmp_path: Path, given: list[str], said: str
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(TEXT)
    out = [] if "--largest" in given else ["--out", tmp_path / "found"]
    code, shown, why = traincast("search", recipe, *given, *out)
    assert (code, shown) == (2, "")
    assert [*tmp_path.iterdir()] == [recipe]
    assert said in why
    assert why.count("\n") == 1
