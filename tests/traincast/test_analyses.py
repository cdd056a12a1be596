"""Analyses by name on the command line: listed, run, of recordings too."""

from __future__ import annotations

import json
import re

import pytest

import traincast.commands.parts.analyses as shown
from schedules.input_error import InputError
from sim.analysis import analyses
from sim.graph import Builder, Fixed
from sim.runs.run import run

pytestmark = pytest.mark.slow

ANALYSES = analyses()
RECIPE = """
model = { preset = "llama3-8b", layers = 4, vocab = 1024 }
cluster = { topology = "dgx_h100", gpus = 16 }
parallelism = { pp = 2, tp = 2, zero = 1 }
training.global_batch = 16
"""


def test_they_are_listed(traincast) -> None:
    code, out, _ = traincast("list", "analyses", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows.keys() == ANALYSES.keys()
    assert rows["contention"]["needs"] == ["machine"]
    assert rows["slack"]["about"] == ANALYSES["slack"].about
    assert "contention" in traincast("list", "analyses")[1]


def test_run_gives_the_figures_of_each(traincast, recipe) -> None:
    asked = [word for name in ANALYSES for word in ("--analysis", name)]
    code, out, _ = traincast("run", recipe, *asked, "--json")
    result = run(recipe)
    assert code == 0
    found = json.loads(out)["analyses"]
    assert found == json.loads(
        json.dumps({k: shown.plain(of(result)) for k, of in ANALYSES.items()})
    )


def test_run_prints_a_table_of_each_that_fits(traincast, recipe, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = [word for name in ANALYSES for word in ("--analysis", name)]
    code, out, _ = traincast("run", recipe, *asked)
    assert code == 0
    for one in ANALYSES.values():
        assert f"\n{one.name}: {one.about}\n" in out
    _, _, tables = out.partition("\nbreakdown: ")
    assert "…" not in tables
    assert "rows left out: " in tables


def test_one_that_needs_what_no_run_has_is_refused_before_the_run(tmp_path) -> None:
    file = tmp_path / "sizes.py"
    file.write_text("def sizes(timeline, topology):\n    return {}\n")
    with pytest.raises(InputError, match="sizes has a parameter topology without a default"):
        shown.chosen([str(file)])


def test_a_figure_called_ops_is_a_number(traincast, recipe, tmp_path) -> None:
    file = tmp_path / "sizes.py"
    file.write_text(
        "def sizes(timeline):\n    return {'ops': len(timeline.graph), 'after': 10**6}\n"
    )
    code, out, _ = traincast("run", recipe, "--analysis", file)
    assert code == 0
    assert re.search(rf"ops +│ +{len(run(recipe).timeline.graph):,} ", out)
    assert re.search(r"after +│ +1,000,000 ", out)


def test_analyze_gives_them_of_a_recording_that_was_simulated(traincast, recipe, tmp_path) -> None:
    """The file names its machine, so even what needs one equals that of the run."""
    assert traincast("run", recipe, "--out", tmp_path / "out")[0] == 0
    asked = ("--analysis", "contention", "--analysis", "roofline", "--json")
    of_run = json.loads(traincast("run", recipe, *asked)[1])["analyses"]
    of_file = json.loads(traincast("analyze", tmp_path / "out/timeline.json.gz", *asked)[1])
    assert of_file["analyses"] == of_run
    code, _, said = traincast("analyze", tmp_path / "out/traces", "--analysis", "contention")
    assert code == 2
    assert (
        "contention needs the machine of a simulated run, which a recording does not have" in said
    )
    code, out, _ = traincast("analyze", tmp_path / "out/traces", "--analysis", "roofline")
    assert code == 0
    assert "nothing of the kind here" in out


def test_an_unknown_one_is_refused_before_anything_is_simulated(traincast, recipe) -> None:
    code, out, said = traincast("run", recipe, "--analysis", "near-critical")
    assert (code, out) == (2, "")
    assert "no analysis 'near-critical'; did you mean near_critical" in said


def test_one_that_has_no_analysis_says_nothing_of_them(traincast, recipe) -> None:
    assert "analyses" not in json.loads(traincast("run", recipe, "--json")[1])


def test_ops_are_called_by_name() -> None:
    builder = Builder()
    builder.add("embed", rank=3, stream="compute", work=Fixed(2.0))
    graph = builder.graph()
    (found,) = shown.frames({"ops": (0,), "more": -1})
    assert shown._columns(found, graph)["value"] == ["embed (rank 3)", "-1"]
