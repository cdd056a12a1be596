"""Pages and schemas in docs/ say what the code says; their examples load."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docs.generate import commands, pages, summary_keys, tables
from schedules.input_error import InputError
from sim.recipe import recipe_file
from sim.runs.run import run
from traincast.main import app

DOCS = pages.DOCS
ROOT = DOCS.parent
REFRESH = "no longer says what the code says; run: python -m docs.generate"
BASE = {
    "model": {"preset": "llama3-8b"},
    "cluster": {"topology": "dgx_h100", "gpus": 64},
    "training": {"global_batch": 64},
}


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_pages_say_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample of a summary apart, whose numbers are compared in the test below."""
    kept = f"```json\n{blocks('summary.md', 'json')[0]}```"
    monkeypatch.setattr(summary_keys, "sample", lambda: kept)
    stale = [path.name for path, text in pages.pages().items() if path.read_text() != text]
    assert not stale, f"{', '.join(stale)} {REFRESH}"


def test_a_page_without_a_place_for_a_table_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: a -->\n<!-- end -->\n")
    assert "new" in pages.filled(page, {"a": lambda: "new"})
    with pytest.raises(InputError, match=r"page\.md has no place for <!-- generated: b -->"):
        pages.filled(page, {"a": str, "b": str})
    with pytest.raises(InputError, match=r"what is not there: <!-- generated: a -->"):
        pages.filled(page, {})


def test_a_table_of_a_new_feature_gets_its_place_in_the_section_around_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## a\n\n<!-- generated: a -->\n<!-- end -->\n\n## b\n")
    text = pages.filled(page, {"a": lambda: "old", "a.new": lambda: "new"})
    assert re.findall(r"^[^\n<]+$", text, re.MULTILINE) == [
        "## a",
        "old",
        "### a.new",
        "new",
        "## b",
    ]
    page.write_text(text)
    assert pages.filled(page, {"a": lambda: "old", "a.new": lambda: "new"}) == text


def test_every_key_of_a_recipe_has_a_row_with_a_meaning() -> None:
    """Counted against the sections of a complete recipe and pydantic's own fields."""
    text = (DOCS / "recipe.md").read_text()
    recipe = recipe_file.parse(BASE)
    for name in ("model", "cluster", "parallelism", "schedule", "training", "simulation"):
        section = getattr(recipe, name)
        table = text.partition(f"<!-- generated: {name} -->")[2].partition("<!-- end -->")[0]
        rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", table, re.MULTILINE)
        assert [key for key, _ in rows] == list(type(section).model_fields), name
        assert all(len(meaning) > 3 for _, meaning in rows)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = below.keys() & above.keys()
    return below | above | {k: below[k] | above[k] for k in both if isinstance(above[k], dict)}


@pytest.mark.parametrize("example", blocks("recipe.md", "toml"))
def test_every_example_loads(example: str) -> None:
    """Alone if it has all it needs, else over a Llama 3 8B on 64 H100."""
    tables_ = tomllib.loads(example)
    whole = {"model", "cluster", "training"} <= tables_.keys()
    assert recipe_file.parse(tables_ if whole else merged(BASE, tables_)).cluster.gpus == 64


def helped(words: str) -> str:
    ran = CliRunner().invoke(
        app, [*words.split(), "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}
    )
    assert ran.exit_code == 0
    return ran.output


@pytest.mark.slow
@pytest.mark.parametrize("words", [name for name, _ in commands.commands()])
def test_every_option_that_help_shows_is_in_the_page(words: str) -> None:
    """And the other way round, but for --help itself."""
    text = (DOCS / "commands.md").read_text()
    section = re.split(rf"^##+ {words}$", text, flags=re.MULTILINE)[1].partition("\n##")[0]
    listed = set(re.findall(r"(?<=`)--[\w-]+(?=`)", section.partition("| argument")[2]))
    shown = helped(words)
    first = set(re.findall(r"^│?[ *]*(--[\w-]+)", shown, re.MULTILINE)) - {"--help"}
    assert first <= listed <= set(re.findall(r"--[\w-]+", shown))


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every number, text and null with its path; entries of a list have the same one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


SMALL = {"model.layers": 4, "parallelism.tp": 1, "parallelism.sp": False}
OFFLOADED = {"training.offload": "optimizer", "simulation.host": True}
LAUNCHED = {"simulation.host": True, "simulation.launch_us": 900.0}
SUMMARIES: list[dict[str, object]] = [
    SMALL | {"simulation.steps": 3, "simulation.allocator": "caching", "cluster.gpus": 1},
    SMALL | {"cluster.gpus": 2, "training.global_batch": 8} | OFFLOADED,
    SMALL | {"cluster.gpus": 4, "parallelism.pp": 4, "schedule.name": "pipedream"},
    SMALL | {"cluster.gpus": 4, "parallelism.pp": 4} | LAUNCHED,
]
CAUSES = {"bubble.by_cause_s.lag", "bubble.by_cause_s.dependency"}
SAMPLE = {"simulation.replicas_drawn", "simulation.noise_error_s"}
ELSEWHERE = {*CAUSES, *SAMPLE, "simulation.folded_later_s", "simulation.classes"} | {
    "machine.borrowed.FAMILY"
}
"""Keys of recordings, of large jobs, of slow ranks, of noise on some replicas, and of machines
without their own measurements."""


def pattern(key: str) -> str:
    return re.sub(r"[A-Z]{2,}", r"[^.]+", re.escape(key).replace(r"\[\]", r"\[\]")) + (
        r"(\.mean|\.max)" if key.startswith("time_s") else r"(\.\w+)?" if "live" in key else ""
    )


def test_every_key_of_a_summary_is_explained_and_every_explained_key_exists() -> None:
    """In pipelines, offloaded, with a host and an allocator, over steps and without a flush."""
    recipe = ROOT / "validation/recipes/korthikanti_22b_full.toml"
    found = {path for over in SUMMARIES for path, _ in leaves(run(recipe, over).summary)}
    found |= {path for path, _ in leaves(json.loads(blocks("summary.md", "json")[0]))}
    known = {key: re.compile(pattern(key)) for key in summary_keys.KEYS}
    assert [p for p in sorted(found) if not any(one.fullmatch(p) for one in known.values())] == []
    unused = {key for key, one in known.items() if not any(map(one.fullmatch, found))}
    assert unused == ELSEWHERE


def test_the_sample_summary_is_complete_and_true() -> None:
    """Equal to a run of the recipe that it names, but for the seconds that the run took."""
    sample = list(leaves(json.loads(blocks("summary.md", "json")[0])))
    result = run(ROOT / "validation/recipes/korthikanti_22b_full.toml")
    real = json.loads(json.dumps(result.summary))
    real["simulation"]["wall_s"] = None
    theirs = list(leaves(real))
    assert [path for path, _ in sample] == [path for path, _ in theirs]
    for (path, mine), (_, value) in zip(sample, theirs, strict=True):
        near = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        assert mine == near, f"{path}: summary.md {REFRESH}"


def test_tables_name_their_inner_tables() -> None:
    """Every link to a table leads to a heading of the page."""
    text = (DOCS / "recipe.md").read_text()
    headings = {name.replace(".", "") for name in re.findall(r"^##+ ([\w.]+)$", text, re.MULTILINE)}
    links = re.findall(r"\[table\]\(#(\w+)\)", text)
    made = {name.replace(".", "") for name in tables.of(recipe_file.json_schema())}
    assert links
    assert set(links) <= headings
    assert made <= headings | {"top"}
