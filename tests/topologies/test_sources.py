"""No constant comes from a step time: what the sources of all constants name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

import pytest

import topologies
from sim.recipe import recipe_file
from traces.calibration import calibrate
from validation import tables

STEP = re.compile(
    r"step[- ]times?|iteration times?|seconds (of|per) (a )?step|tokens?(/s| per second)"
    r"|samples?(/s| per second)|\bmfu\b|throughput of (a )?(step|training)|validation/"
)
"""What a whole step takes, in the words of papers and of this project."""


def sources(table: object, key: str = "source") -> Iterator[str]:
    """Every source in nested tables."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from [str(value)] if name == key else sources(value, key)


def every() -> Iterator[tuple[str, str]]:
    """The file and text of every source of a constant."""
    for name in topologies.names():
        yield from ((name, text) for text in sources(tomllib.loads(topologies.text(name))))
    for name in ("assumed", "residuals"):
        text = (files("sim.machine") / f"{name}.toml").read_text(encoding="utf-8")
        yield from ((name, of) for of in sources(tomllib.loads(text)))
    yield from (("calibrate", text) for text in calibrate.SOURCES.values())


def plain(text: str) -> str:
    """Letters and digits alone, so that no spelling of a model hides it."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@cache
def models() -> set[str]:
    """The models of all rows with their sizes, such as llama370b, and the names of their rows."""
    found = set()
    for name in tables.names():
        for row in tables.read(name).rows:
            if row.figure == "step":
                model = str(recipe_file.load(row.recipe, row.overrides).model.name)
                found |= {plain(of) for of in (model, row.id) if any(c.isdigit() for c in of)}
    return found


def named(text: str) -> list[str]:
    """What a source names of step times, of the models of their rows and of their tables."""
    found, letters = [of.group() for of in STEP.finditer(text.lower())], plain(text)
    return found + [of for of in (*models(), *map(plain, tables.names())) if of in letters]


@pytest.mark.slow
def test_no_source_names_a_step_time_or_a_model_of_one():
    found = list(every())
    assert len(found) > 100
    assert len(models()) > 150
    assert [(name, said, text) for name, text in found if (said := named(text))] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "fitted to the step time of a run",
        "Korthikanti et al. 2022, table 5: iteration time",
        "so that Llama-3 70B on 64 H100 comes out",
        "MosaicML's README: tokens/s per GPU",
        "as validation/published/simumax_b200.toml has it",
        "vtrain multi",
        "MPT-30b",
    ],
)
def test_a_source_that_does_is_found(text):
    assert named(text)
