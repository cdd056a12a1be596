"""README's commands, recipes, code and sample are what a reader would get."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sim.recipe import load as config
from sim.recipe.translate.fates import Ignored
from sim.runs.run import run
from traincast.main import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Command lines of the section Use, without what stands behind #."""
    lines = (line.split(" #")[0].strip() for block in blocks("bash") for line in block.splitlines())
    return [line for line in lines if line.startswith("traincast ")]


SLOW = ("traincast sweep", "traincast compare recipe.toml --schedules all")
"""Commands that simulate often, by how they begin."""


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=[pytest.mark.slow] * line.startswith(SLOW)) for line in commands()],
)
def test_every_command_of_the_section_use_works(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run in a folder that has the recipe, the order and the config that the lines speak of."""
    if line == "traincast validate":
        pytest.skip("simulates all published runs; test_validation runs the small ones")
    monkeypatch.chdir(tmp_path)
    small = (ROOT / "validation/recipes/korthikanti_22b_full.toml").read_text()
    small = small.replace('preset = "gpt-22b"', 'preset = "gpt-22b"\nlayers = 2')
    (tmp_path / "recipe.toml").write_text(small.replace("global_batch = 4", "global_batch = 8"))
    (tmp_path / "other.toml").write_text(small)
    llama = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 5632,
        "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "order.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
    (tmp_path / "config.json").write_text(json.dumps(llama))
    timed = {
        "optype": ["forward-compute", "backward-compute"],
        "start_ts": [0, 5],
        "duration": [5, 7],
    }
    same = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
    pd.DataFrame(timed).assign(**dict.fromkeys(same, 0)).to_parquet(tmp_path / "trace.parquet")
    result = CliRunner().invoke(app, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output


def test_the_recipe_is_a_job() -> None:
    """The first TOML block, parsed and completed as it stands."""
    assert config.parse(tomllib.loads(blocks("toml")[0])).stages == 24


def test_the_perturbations_run() -> None:
    """Over a recipe of 16 GPUs in two nodes: each table is one that changes the step."""
    recipe = {
        "model": {"preset": "llama3-8b", "layers": 2},
        "cluster": {"topology": "dgx_h100", "gpus": 16},
        "parallelism": {"tp": 2},
        "training": {"global_batch": 8},
    }
    tables = tomllib.loads(blocks("toml")[1])["perturbations"]
    plain = run(config.parse(recipe)).timeline.seconds
    assert len(tables) == 5
    for table in tables:
        changed = run(config.parse(recipe | {"perturbations": [table]})).timeline.seconds
        assert changed != plain, table


def test_the_script_and_the_recipe_that_names_it_are_a_job(tmp_path: Path) -> None:
    """Llama 3 8B, of which the script says all numbers."""
    (tmp_path / "train.sh").write_text(blocks("sh")[0])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(blocks("toml")[2])
    llama = {"preset": "llama3-8b", "name": "model"}
    like = config.parse({"model": llama, "cluster": {"topology": "dgx_h100", "gpus": 16},
                         "training": {"global_batch": 64}})  # fmt: skip
    job = config.load(recipe)
    assert job.architecture == like.architecture
    assert (job.parallelism.tp, job.parallelism.dp, job.parallelism.zero) == (4, 4, 1)
    assert job.training.recompute == "selective"
    assert config.ignored(recipe) == {"train.sh": Ignored(["--lr"])}


def test_the_topology_runs_a_job(tmp_path: Path) -> None:
    """The last TOML block: 16 GPUs of it, 4 to a node, two to a port."""
    machine = tmp_path / "pcie_l40s.toml"
    machine.write_text(blocks("toml")[3])
    more = {"cluster.topology": str(machine), "cluster.gpus": 16, "parallelism.tp": 2}
    small = {"model.layers": 2, "training.global_batch": 64, "training.micro_batch": 1}
    result = run(ROOT / "validation/recipes/korthikanti_22b_full.toml", more | small)
    assert result.cluster.gpus_per_node == 4
    assert 0 < result.summary["mfu"] < 0.5


def test_the_python_examples_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One after another, in a folder that has the recipes and the rank files' folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "validation").symlink_to(ROOT / "validation")
    (tmp_path / "out/traces").mkdir(parents=True)
    names: dict[str, object] = {}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), names)
    assert "gemm" in capsys.readouterr().out


def test_the_sample_summary_is_complete_and_true() -> None:
    """Equal to a run of the recipe it names, but for the seconds that the run took."""
    (text,) = blocks("json")
    sample = json.loads(text)
    result = run(ROOT / "validation/recipes/korthikanti_22b_full.toml")
    real = json.loads(json.dumps(result.summary))
    real["simulation"]["wall_s"] = None
    mine, theirs = flat(sample), flat(real)
    assert mine.keys() == theirs.keys()
    for path, value in theirs.items():
        numeric = isinstance(value, float)
        assert mine[path] == (pytest.approx(value, rel=1e-6) if numeric else value), path


def flat(value: object, path: str = "") -> dict[str, object]:
    """Leaves by path: text as it is, numbers to compare within 1e-6."""
    if isinstance(value, dict):
        return {
            k: v for key, inner in value.items() for k, v in flat(inner, f"{path}/{key}").items()
        }
    if isinstance(value, list):
        return {
            k: v for i, inner in enumerate(value) for k, v in flat(inner, f"{path}/{i}").items()
        }
    return {path: value}


def test_the_first_command_names_a_recipe_that_is_there() -> None:
    (recipe,) = re.findall(r"traincast run (\S+) --out out\n```", README)
    assert (ROOT / recipe).is_file()
