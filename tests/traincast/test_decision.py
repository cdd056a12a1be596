"""The page of a search: one decision with its reasons, in one file that loads nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.search.search import search
from traincast.commands.parts import decision

pytestmark = pytest.mark.slow

RECIPE = """
model = { layers = 4, hidden = 256, heads = 4, vocab = 512, sequence = 256 }
cluster = { topology = "dgx_h100", gpus = 4 }
training = { global_batch = 8 }
"""


def test_the_page_has_the_decision_and_every_layout(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    found = search(tmp_path / "recipe.toml", budget=6, jobs=1)
    files = decision.write(found, tmp_path / "recipe.toml", {}, tmp_path, lambda *_: None)
    assert [file.name for file in files] == ["search.html", "frontier.png", "why.png"]
    page = files[0].read_text()
    assert decision.sentence(found) in page
    assert page.count("<circle") == len(found.simulated)
    rows = re.findall(r"<tr><td[^>]*>(?:<[^>]*>)?([^<]*)", page)
    assert {found.name(row) for row in found.simulated} <= set(rows)
    assert not re.search(r"(src|href)=.(http|//)", page)


def test_the_few_are_the_best_the_next_and_the_smallest(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    found = search(tmp_path / "recipe.toml", budget=6, jobs=1)
    few = decision.few(found)
    assert few[:2] == found.best[:2]
    assert min(found.simulated, key=lambda row: row["peak_bytes"]) in few
