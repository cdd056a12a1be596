"""The pages as they should be: text written by hand, tables between two marks from the code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docs.generate import commands, machines, python_names, summary_keys, tables
from schedules.input_error import InputError
from sim.machine import topology_schema
from sim.recipe import recipe_file

DOCS = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Return the text of every page that the code has a part in, by its path.

    Raises InputError when a page lacks the mark of a table, or has one that nothing fills.
    """
    recipe = recipe_file.json_schema()
    blocks: dict[str, Mapping[str, Callable[[], str]]] = {
        "recipe.md": tables.of(recipe),
        "topology.md": tables.of(topology_schema.complete()),
        "commands.md": {"commands": commands.text},
        "python.md": python_names.of(),
        "machine.md": {"machines": machines.text},
        "summary.md": {"keys": summary_keys.text, "sample": summary_keys.sample},
    }
    out = {DOCS / name: filled(DOCS / name, of) for name, of in blocks.items()}
    schemas = {"recipe": recipe, "topology": topology_schema.json_schema()}
    files = {DOCS / f"schema/{name}.json": written(schema) for name, schema in schemas.items()}
    return out | files


def filled(page: Path, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return the page's text with what stands between its marks made anew.

    A new table inside a section, such as a feature's, gets a place at the end of that section.
    """
    text = page.read_text()
    for name in blocks:
        if f"<!-- generated: {name} -->" not in text:
            text = with_place(text, name)
    marks = [mark for _, mark, _ in _BLOCK.findall(text)]
    for name in sorted(set(marks) ^ set(blocks)):
        fault = "has no place for" if name in blocks else "has a place for what is not there:"
        raise InputError(f"docs/{page.name} {fault} <!-- generated: {name} --> ... <!-- end -->")
    return _BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]()}\n\n{found[3]}", text)


def with_place(text: str, name: str) -> str:
    """Return the text with a heading and marks for a table, if it has the section around it."""
    section = re.compile(rf"^## {name.partition('.')[0]}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    place = f"### {name}\n\n<!-- generated: {name} -->\n<!-- end -->\n\n"
    return section.sub(lambda found: f"{found[0].rstrip()}\n\n{place}", text, count=1)


def written(schema: Mapping[str, Any]) -> str:
    """Return the schema as the text of its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
