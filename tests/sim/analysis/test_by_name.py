"""Analyses are found by the names of their files, and say what they need."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sim.analysis
from schedules.input_error import InputError
from sim.analysis import Analyses, analyses
from sim.recipe import recipe_file
from sim.runs.run import Result, run
from tests.recipes import tables
from traincast.commands.parts.analyses import frames, plain

ANALYSES = analyses()
MODEL = {"preset": "llama3-8b", "layers": 4, "vocab": 1024}
SMALL = tables(MODEL, 16, gpus=16, pp=2, tp=2, zero=1)


@pytest.fixture(scope="module")
def result() -> Result:
    return run(recipe_file.parse(SMALL))


def test_every_question_that_the_folder_answers_is_there() -> None:
    assert {"near_critical", "contention", "hidden", "roofline", "traffic"} <= ANALYSES.keys()
    helpers = {"activity", "alike", "intervals", "relations", "longest"}
    assert helpers.isdisjoint(ANALYSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ANALYSES)
def test_it_says_what_calling_its_function_says(name: str, result: Result) -> None:
    function = getattr(importlib.import_module(f"sim.analysis.{name}"), name)
    more = {"machine": result.machine} if name == "contention" else {}
    mine, direct = plain(ANALYSES[name](result)), plain(function(result.timeline, **more))
    assert mine == direct
    assert mine
    assert all(isinstance(frame, pd.DataFrame) for frame in frames(ANALYSES[name](result)))


def test_files_that_help_analyses_say_so() -> None:
    """A reader of the folder tells them from analyses, as the function of their name does."""
    for module in pkgutil.iter_modules(sim.analysis.__path__):
        text = importlib.import_module(f"sim.analysis.{module.name}").__doc__ or ""
        assert text.startswith("A helper of ") == (module.name not in ANALYSES), module.name


@pytest.mark.parametrize("name", ANALYSES)
def test_its_sentence_tells_what_it_does(name: str) -> None:
    about = ANALYSES[name].about
    assert about.endswith(".")
    assert about.count(". ") == 0
    assert len(about) > 30


def test_one_that_needs_a_machine_says_so_where_there_is_none(result: Result) -> None:
    assert ANALYSES["contention"].needs == ("timeline", "machine")
    with pytest.raises(InputError, match="contention needs the machine of a simulated run"):
        ANALYSES["contention"](result.timeline)
    given = ANALYSES["contention"](result.timeline, machine=result.machine)
    assert given.equals(ANALYSES["contention"](result))


def test_options_are_handed_on(result: Result) -> None:
    assert len(ANALYSES["near_critical"](result, most=2)) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("contenton", "no analysis 'contenton'; did you mean contention? There are {every}, "),
        ("qqq", "no analysis 'qqq'; there are {every}, "),
        ("./none.py", "cannot read the analysis none.py: No such file"),
    ],
)
def test_an_unknown_name_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        ANALYSES[name]
    assert str(error.value).startswith(sentence.format(every=", ".join(ANALYSES)))


def test_a_file_that_is_added_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file in the folder and nothing else; of one that is none, its name says why."""
    code = '"""A file."""\n\ndef {0}({1}):\n    """Count ops. All of them."""\n    return 3\n'
    for name, first in (("ops_there", "timeline"), ("aside", "graph")):
        (tmp_path / f"{name}.py").write_text(code.format(name, first))
    monkeypatch.setattr(sim.analysis, "__path__", [*sim.analysis.__path__, str(tmp_path)])
    found = analyses()
    assert found.keys() - ANALYSES.keys() == {"ops_there"}
    assert found["ops_there"].about == "Count ops."
    assert found["ops_there"](None) == 3
    with pytest.raises(InputError, match=r"aside.py is no analysis: the first parameter of aside"):
        found["aside"]


def test_a_file_elsewhere_is_run(tmp_path: Path, result: Result) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(timeline):\n    return {'ops': len(timeline.graph)}\n")
    assert ANALYSES[str(file)](result) == {"ops": len(result.timeline.graph)}
    file.write_text("def mine(graph):\n    return 1\n")
    with pytest.raises(InputError, match="the first parameter of mine must be timeline"):
        ANALYSES[str(file)]
    file.write_text("def mine(timeline, topology):\n    return 1 + topology\n")
    with pytest.raises(InputError, match=r"a parameter topology .* takes machine, cluster, job or"):
        ANALYSES[str(file)](result)
    assert ANALYSES[str(file)](result, topology=2) == 3


def test_a_notebook_shows_them_all() -> None:
    html = Analyses(ANALYSES)._repr_html_()
    assert all(name in html for name in ANALYSES)
    assert repr(ANALYSES) == f"Analyses: {', '.join(ANALYSES)}"


def test_what_they_return_becomes_lists_and_numbers() -> None:
    found = {"a": np.arange(2), 3: [pd.DataFrame({"x": [1.5]})], "s": ("t", np.float64(2.0))}
    assert plain(found) == {"a": [0, 1], "3": [[{"x": 1.5}]], "s": ["t", 2.0]}
