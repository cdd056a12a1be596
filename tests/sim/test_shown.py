"""What notebooks show of objects, and what completion offers."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import sim
from sim.graph import Builder, Fixed
from sim.html import MOST_ROWS, table
from sim.runs.run import Result
from sim.timeline import Timeline
from tests.recipes import ran


class Cells(HTMLParser):
    """Text of cells, and tags that are open still."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def result() -> Result:
    return ran({"preset": "llama3-8b", "layers": 4, "vocab": 1024}, 8, gpus=8, pp=2, tp=2)


def test_a_result_shows_its_job_and_its_figures(result: Result) -> None:
    text = Cells(result._repr_html_()).text
    assert text[0].startswith("Result: 8 H100")
    assert "tp 2, pp 2, dp 2, one_f_one_b; 4 microbatches" in text
    assert f"{result.summary['tokens_per_s']:,.0f}" in text
    assert (
        f"{max(m['peak_bytes'] for m in result.summary['memory']) / 2**30:.1f} GiB, rank 0" in text
    )


def test_a_timeline_shows_streams_and_a_graph_its_sizes(result: Result) -> None:
    text = Cells(result.timeline._repr_html_()).text
    streams = sum(1 for _ in result.timeline.graph.by_stream())
    assert "compute" in text
    assert (f"... {streams - MOST_ROWS} more" in text) == (streams > 12)
    compute = result.timeline.on(0, "compute")
    assert f"{len(compute):,}" in text
    assert f"{len(result.timeline.graph):,}" in Cells(result.timeline.graph._repr_html_()).text


def test_a_prompt_shows_one_line(result: Result) -> None:
    graph = result.timeline.graph
    assert repr(graph) == f"Graph: {len(graph):,} ops on {len(graph.ranks())} ranks"
    said = repr(result)
    assert said.startswith("Result: 8 H100-SXM5-80GB, llama3-8b, tp 2, pp 2, dp 2, one_f_one_b, ")
    assert said.endswith(repr(result.timeline))
    assert len(said) < 150


def test_all_are_whole_tables(result: Result) -> None:
    for one in (result, result.summary, result.timeline, result.timeline.graph):
        assert Cells(one._repr_html_()).open == []
        assert len(one._repr_html_()) < 6_000


def test_names_with_markup_do_nothing() -> None:
    builder = Builder()
    builder.add("a", rank=0, stream="<script>alert(1)</script>", work=Fixed(2.0))
    graph = builder.graph()
    shown = Timeline(graph, *(column + 0.0 for column in (graph.lag, graph.lag + 2.0)))
    for html in (shown._repr_html_(), graph._repr_html_(), table("<b>", [("<i>",)])):
        assert "<script" not in html
        assert "&lt;" in html


def test_empty_things_are_shown_too() -> None:
    graph = Builder().graph()
    assert "0 ops in 0 s" in Timeline(graph, graph.lag, graph.lag)._repr_html_()


def test_a_summary_is_still_a_dict(result: Result) -> None:
    assert json.loads(json.dumps(result.summary))["step_time_s"] == result.timeline.seconds
    assert isinstance(result.summary, dict)


def test_completion_offers_what_one_may_use(result: Result) -> None:
    assert {"recipe", "cluster", "timeline", "summary", "machine"} <= {*dir(result)}
    assert not [name for name in dir(result) if name.startswith("_")]
    assert all(hasattr(result, name) for name in dir(result))
    assert {"run", "load", "Result"} <= {*dir(sim)}
    assert "TYPE_CHECKING" not in dir(sim)


def test_every_notebooks_first_page_says_what_it_is() -> None:
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb")):
        first = json.loads(path.read_text())["cells"][0]
        assert re.match("# [A-Z]", "".join(first["source"])), path.name
