"""Notebooks are what a reader would get by running them, and define nothing themselves."""

from __future__ import annotations

import ast
import base64
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.refresh import executed, notebooks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))),
        reason="needs nbclient and ipykernel (traincast[docs])"),
]  # fmt: skip

PATHS = notebooks()
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
each = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    import nbformat  # takes seconds, which only those who run these tests should wait

    return nbformat.read(path, as_version=4)


def code(notebook: Any) -> list[str]:
    """The sources of the cells that run, as Python."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def shown(notebook: Any) -> list[str]:
    """What the cells print and say, as text; a picture is only said to be one.

    Not what they warn of, such as a font that a machine has not.
    """
    out = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                continue
            data = output.get("data", {"text/plain": output.get("text", "")})
            kinds = ("text/markdown", "text/html", "text/plain")
            text = next((data[kind] for kind in kinds if kind in data), "")
            out.append("a picture" if "image/png" in data else text)
    return out


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> dict[Path, Any]:
    """The notebooks that are asked for, each run in a kernel of its own."""
    items = [item for item in request.session.items if item.path == request.path]
    asked = [item for item in items if "ran" in item.fixturenames]
    return executed(*(item.callspec.params["path"] for item in asked))


@pytest.mark.filterwarnings("default")  # of kernels and sockets, not of this project
@each
def test_it_runs_and_shows_what_is_written_in_it(path: Path, ran: dict[Path, Any]) -> None:
    """From top to bottom, asserts and all; then the text is the same as in the file."""
    if isinstance(ran[path], BaseException):
        raise ran[path]
    assert shown(ran[path]) == shown(read(path)), "see notebooks/README.md: refresh it"


@each
def test_it_defines_nothing_and_claims_something(path: Path) -> None:
    nodes = [node for source in code(read(path)) for node in ast.walk(ast.parse(source))]
    assert not [node for node in nodes if isinstance(node, DEFINITIONS)]
    assert sum(isinstance(node, ast.Assert) for node in nodes) >= 3


@each
def test_it_was_run_in_order_and_its_pictures_are_small(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    pictures = [
        base64.b64decode(output.data["image/png"])
        for cell in cells
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert max(map(len, pictures)) <= 60_000


def test_the_list_of_notebooks_is_complete() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \|", (PATHS[0].parent / "README.md").read_text(), re.MULTILINE
    )
    assert listed == [path.stem for path in PATHS]


def test_an_unknown_notebook_is_named() -> None:
    with pytest.raises(ValueError, match="no notebook '77'; there are 01_config_to_timeline"):
        notebooks("77")
