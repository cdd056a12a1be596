"""README and the pages of docs: every block runs, every link leads somewhere, figures are true."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sim.machine.collectives import ALGORITHMS
from sim.recipe import recipe_file
from sim.recipe.translate.fates import Ignored
from sim.runs.run import run
from tests.docs.pages import PAGES, ROOT, blocks, command, follow, lines, prepare
from tests.recipes import tables
from traces import reading
from validation import readme

EXTENDING = [page for page in PAGES if page.parent.name == "extending" and page.stem != "README"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where blocks run; what they register is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(ALGORITHMS, "all_reduce", {**ALGORITHMS["all_reduce"]})
    monkeypatch.setattr(reading, "FORMATS", reading.FORMATS)
    prepare(tmp_path)
    return tmp_path


def said(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=said)
def test_every_block_runs_and_prints_what_the_page_says(page: Path, folder: Path) -> None:
    """``python -m tests.docs.pages`` writes what blocks print into the pages."""
    for block, real in follow(page.read_text(), folder):
        assert lines(real) == block.code


@pytest.mark.parametrize("page", PAGES, ids=said)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", prose(page)):
        target = (page.parent / link) if link else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(prose(target)), f"{link}#{anchor}"


def prose(page: Path) -> str:
    """A page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", EXTENDING, ids=said)
def test_a_page_about_extending_checks_what_it_builds(page: Path) -> None:
    code = [block.code for block in blocks(page.read_text()) if block.language == "python"]
    assert sum(line.startswith("assert ") for one in code for line in one.splitlines()) >= 3


def test_the_list_of_parts_has_every_page() -> None:
    text = (ROOT / "docs/extending/README.md").read_text()
    listed = re.findall(r"^\| \[[^]]+\]\((\S+?)\)", text, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in EXTENDING)


@pytest.mark.slow
def test_the_commands_of_readme_run(folder: Path) -> None:
    """In turn, over the recipe that the first writes and the traces that a run leaves."""
    text = (ROOT / "README.md").read_text()
    every = re.findall(r"^\| `(traincast \w+ [^`]+)`", text, re.MULTILINE)
    assert len(every) == 12
    for line in every:
        command(line)


def test_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_is_linked_from_another() -> None:
    for page in PAGES[1:]:
        others = "".join(other.read_text() for other in PAGES if other != page)
        assert re.search(rf"\]\((?:\S*/)?{page.name}[)#]", others), page


@pytest.mark.parametrize(("page", "shown"), readme.TABLES.items())
def test_step_times_of_a_page_are_those_of_the_results(page: str, shown: tuple[str, ...]) -> None:
    """``validation/results.md`` holds all rows; another test compares it with predictions."""
    results = (ROOT / "validation/results.md").read_text()
    for name in shown:
        (row,) = re.findall(rf"^\| {re.escape(name)} \| (\S+) \| (\S+) \|", results, re.MULTILINE)
        said = " | ".join((*readme.STEPS[name], f"{row[1]} s", f"{row[0]} s"))
        assert said in (ROOT / page).read_text()


def test_the_map_names_places_that_are_there() -> None:
    """Paths in code type, from the root; NAME stands for any name."""
    paths = re.findall(r"`([\w.]+/[\w./]*)`", (ROOT / "docs/map.md").read_text())
    there = [path for path in paths if "NAME" not in path]
    assert len(there) > 40
    assert [path for path in there if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_perturbations_run() -> None:
    """Over a recipe of 16 GPUs in two nodes: each table is one that changes the step."""
    recipe = tables({"preset": "llama3-8b", "layers": 2}, 8, gpus=16, tp=2)
    found = blocks((ROOT / "docs/strategies.md").read_text())
    (text,) = (block.code for block in found if block.code.startswith("[[perturbations]]"))
    plain = run(recipe_file.parse(recipe)).timeline.seconds
    each = tomllib.loads(text)["perturbations"]
    assert len(each) == 6
    for table in each:
        changed = run(recipe_file.parse(recipe | {"perturbations": [table]})).timeline.seconds
        assert changed != plain, table


def test_the_script_and_the_recipe_that_names_it_are_a_job(folder: Path) -> None:
    """Llama 3 8B, of which the script says all numbers."""
    for _ in follow((ROOT / "docs/importing.md").read_text(), folder):
        pass
    llama = {"preset": "llama3-8b", "name": "model"}
    like = recipe_file.parse({"model": llama, "cluster": {"topology": "dgx_h100", "gpus": 16},
                         "training": {"global_batch": 64}})  # fmt: skip
    job = recipe_file.load("recipe.toml")
    assert job.architecture == like.architecture
    assert (job.parallelism.tp, job.parallelism.dp, job.parallelism.zero) == (4, 4, 1)
    assert job.training.recompute == "selective"
    assert recipe_file.ignored("recipe.toml") == {"train.sh": Ignored(["--lr"])}


def test_the_first_command_names_a_recipe_that_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    (recipe,) = re.findall(r"traincast run (\S+) --out out\n```", text)
    assert (ROOT / recipe).is_file()
