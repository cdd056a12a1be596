"""The site has every page of the tree once, and what pages link to; MkDocs checks the links."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs")
from docs import site

NAV = (site.ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


def test_the_menu_has_every_page_once() -> None:
    named = re.findall(r"(?:- |: )(\S+\.(?:md|ipynb))$", NAV, re.MULTILINE)
    there = [path.relative_to(site.ROOT).as_posix() for path in site.pages()]
    assert sorted(named) == sorted(there), "the menu in mkdocs.yml and the pages of the tree differ"


def test_the_site_has_pages_and_what_they_link_to(tmp_path: Path) -> None:
    """Pictures and code too, under their own paths; nothing else of docs/."""
    found = SimpleNamespace(is_documentation_page=lambda: True)
    theme = SimpleNamespace(
        is_documentation_page=lambda: False, abs_src_path="/theme.css", src_uri="theme.css"
    )
    config = SimpleNamespace(site_dir=str(tmp_path), use_directory_urls=True)
    uris = [file.src_uri for file in site.on_files([found, theme], config)]
    assert len(uris) == len(set(uris))
    assert {"theme.css", "README.md", "docs/recipe.md", "notebooks/06_mixtures.ipynb"} < set(uris)
    assert "validation/pictures/zero_bubble_14.6b.png" in uris
    assert not any(uri.startswith("docs/generate") for uri in uris)


def test_a_link_leads_to_a_file_of_the_tree(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.py").touch()
    page = tmp_path / "docs/page.md"
    page.write_text("[a](../a.py#L3) [b](../b.py) [c](https://c.org/a.py) [top](#top) [d](../docs)")
    assert list(site.linked(page)) == [tmp_path / "a.py"]
