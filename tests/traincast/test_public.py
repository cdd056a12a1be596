"""``import traincast as tc``: the public names, what they show, and the page about them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import traincast as tc
from sim.runs.run import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/python.md").read_text()
RECIPE = """
model = { preset = "llama3-8b", layers = 4, vocab = 1024 }
cluster = { topology = "dgx_h100", gpus = 8 }
training.global_batch = 16
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("job") / "recipe.toml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="module")
def result(recipe: Path) -> tc.Result:
    return tc.run(recipe, {"parallelism.pp": 2})


def test_every_name_is_there_and_is_imported_from_where_types_say() -> None:
    """What a type checker reads under TYPE_CHECKING is what Python imports."""
    (block,) = [node for node in ast.parse(inspect.getsource(tc)).body if isinstance(node, ast.If)]
    said = {}
    for node in block.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            (one,) = node.names
            said[one.asname] = f"{getattr(node, 'module', '')}.{one.name}".strip(".")
    meant = {name: where.replace(":", ".") for name, where in tc._FROM.items()}
    assert said == meant
    assert sorted([*meant, "__version__"]) == tc.__all__
    assert all(getattr(tc, name) is not None for name in tc.__all__)


def test_completion_offers_the_public_names_alone() -> None:
    assert dir(tc) == tc.__all__
    with pytest.raises(AttributeError, match="module 'traincast' has no attribute 'runn'"):
        tc.runn  # type: ignore[attr-defined]  # noqa: B018
    assert {"path", "slack", "by_cause"} <= {*dir(tc.analysis)}
    assert tc.analysis.path is tc.analyses()["path"].function


def test_the_page_has_every_name_and_no_other() -> None:
    names = re.findall(r"^- \*\*`tc\.(\w+)", PAGE, re.MULTILINE)
    assert sorted([*names, "__version__"]) == tc.__all__


def test_every_example_of_the_page_runs(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(recipe.read_text())
    names: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for code in blocks:
        exec(compile(code, "python.md", "exec"), names)
    assert (tmp_path / "out/report.html").stat().st_size > 0


def test_it_is_the_same_run_as_before(recipe: Path, result: tc.Result) -> None:
    again = run(recipe, {"parallelism.pp": 2})
    assert result.summary | {"simulation": 0} == again.summary | {"simulation": 0}


def test_results_show_themselves(result: tc.Result, tmp_path: Path) -> None:
    tc.write(result, tmp_path / "out")
    recording = tc.read(str(tmp_path / "out/timeline.json.gz"))
    alone = tc.schedule("interleaved_1f1b", 4, 8)
    ways = tc.compare(tmp_path / "out/recipe.toml", {"same": {}, "none": {"cluster.gpus": 9}})
    shown = [recording, tc.replay(recording), alone, *ways, result]
    for one in shown:
        assert one._repr_html_().count("<div>") == one._repr_html_().count("</div>") > 0
        assert len(repr(one)) < 3000
        assert not [name for name in dir(one) if name.startswith("_")]
    assert "recording" not in repr(recording)
    assert repr(recording) == f"Recording: traincast, {recording.timeline!r}"
    assert "cluster.gpus" in ways[1]._repr_html_()
    assert {"timeline", "machine", "format"} <= {*dir(recording)}
    assert alone.timeline.seconds == alone["makespan_s"]


def test_recipes_are_taken_by_path_too(recipe: Path) -> None:
    assert tc.check(str(recipe)) == tc.check(tc.load(recipe))
    assert tc.balance(recipe) == tc.balance(tc.load(recipe)) == [4]


def test_a_replay_with_every_delay_repeats_the_recording(result: tc.Result, tmp_path: Path) -> None:
    tc.write_rank_files(result.timeline, tmp_path)
    recording = tc.read(tmp_path)
    graph = tc.replay_graph(recording, "recorded")
    again = tc.simulate(graph, tc.ideal(graph))
    assert again.end == pytest.approx(recording.timeline.end, abs=1e-12)
    assert tc.replay_ways(recording.format) == ("anchored", "modelled", "none")
    with pytest.raises(tc.InputError, match="replayed with hosts anchored or modelled or none"):
        tc.replay_graph(recording, "other")


def test_the_module_runs_as_the_command_and_says_its_version() -> None:
    for line in (["-m", "traincast"], ["-m", "traincast.main"]):
        command = [sys.executable, *line, "--version"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        assert ran.stdout == f"traincast {version('traincast')}\n"
    assert tc.__version__ == version("traincast")
