"""The page of features, followed in a copy of the package: a feature takes one folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import RECIPE, ROOT, blocks

pytestmark = pytest.mark.slow


def test_a_feature_is_one_folder(tmp_path: Path) -> None:
    for package in ("schedules", "sim", "topologies", "traces", "traincast", "validation"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data"))
    page = (ROOT / "docs" / "extending" / "feature.md").read_text()
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
