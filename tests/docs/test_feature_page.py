"""Pages followed in a copy of the package: a feature takes one folder, a kind of layer one file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import RECIPE, ROOT, blocks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["feature", "layer_kind"])
def test_a_page_adds_a_part_to_the_package(name: str, tmp_path: Path) -> None:
    for package in ("schedules", "sim", "topologies", "traces", "traincast", "validation"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data"))
    page = (ROOT / "docs" / "extending" / f"{name}.md").read_text()
    for block in blocks(page):
        if block.language == "python":
            path = tmp_path / block.mark.removeprefix("not run: ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.code)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    ran = subprocess.run(
        [sys.executable, "check.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
