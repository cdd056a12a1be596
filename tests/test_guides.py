"""Every block of the guides does what the text around it says: files, commands, Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.machine.collectives import ALGORITHMS
from traces import reading
from traincast.main import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs/extending").glob("*.md"))
PAGES = [path for path in GUIDES if path.name != "README.md"]
BLOCK = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPE = """
[model]
preset = "llama3-8b"
layers = {layers}
vocab = 1024

[cluster]
topology = "dgx_h100"
gpus = 8

[training]
global_batch = 16
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the blocks run; what they register is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ALGORITHMS, "all_reduce", {**ALGORITHMS["all_reduce"]})
    monkeypatch.setattr(reading, "FORMATS", reading.FORMATS)
    return tmp_path


@pytest.mark.parametrize("guide", PAGES, ids=lambda path: path.stem)
def test_every_block_runs(guide: Path, folder: Path) -> None:
    """In turn, in a folder with a small recipe; Python in one namespace."""
    text = guide.read_text()
    layers = 4 if "pp=4" in text else 2
    (folder / "recipe.toml").write_text(RECIPE.format(layers=layers))
    names: dict[str, object] = {"__name__": "guide"}
    for file, language, code in BLOCK.findall(text):
        if file:
            (folder / file).write_text(code)
        elif language == "bash":
            for line in code.splitlines():
                ran = CliRunner().invoke(app, shlex.split(line)[1:])
                assert ran.exit_code == 0, ran.output
        else:
            assert language == "python"
            exec(compile(code, guide.name, "exec"), names)


@pytest.mark.parametrize("guide", PAGES, ids=lambda path: path.stem)
def test_it_checks_what_it_builds(guide: Path) -> None:
    code = [code for _, language, code in BLOCK.findall(guide.read_text()) if language == "python"]
    assert sum(line.startswith("assert ") for one in code for line in one.splitlines()) >= 3


def test_every_page_is_in_the_list_and_every_link_leads_somewhere() -> None:
    text = (ROOT / "docs/extending/README.md").read_text()
    assert re.findall(r"^\| \[[^]]+\]\((\S+?)\)", text, re.MULTILINE) == [
        "schedule.md", "topology.md", "strategy.md", "collective.md", "analysis.md",
        "kernel_names.md", "trace_format.md",
    ]  # fmt: skip
    assert len(PAGES) == 7
    for guide in GUIDES:
        for link in re.findall(r"\]\(([^)#]+)(?:#\S*)?\)", guide.read_text()):
            assert (guide.parent / link).exists(), link
