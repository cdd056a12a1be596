"""How the choice among measured layouts is judged, and the jobs that it is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from validation.layouts import page
from validation.layouts_judged import Compared, rank_correlation, regret, top_holds
from validation.layouts_measured import Job, Layout, bloom, bridge, grouped, nanotron, vtrain

MEASURED = [4.0, 1.0, 2.0, 3.0, 5.0]
TABLES = [  # predicted: regret, whether the top three hold the second, which was fastest
    ([4.0, 1.0, 2.0, 3.0, 5.0], 0.0, True),
    ([1.0, 3.0, 2.0, 4.0, 5.0], 3.0, True),
    ([2.0, 4.0, 1.0, 3.0, 5.0], 1.0, False),
    ([2.0, 2.0, 2.0, 3.0, 4.0], 3.0, True),  # of equals the first is chosen
]


@pytest.mark.parametrize(("predicted", "lost", "held"), TABLES)
def test_a_choice_is_judged_by_what_its_measured_time_loses(
    predicted: Sequence[float], lost: float, held: bool
) -> None:
    assert regret(MEASURED, predicted) == lost
    assert top_holds(MEASURED, predicted) is held
    oracle = spearmanr(MEASURED, predicted).statistic
    assert rank_correlation(MEASURED, predicted) == pytest.approx(oracle, abs=1e-12)


def test_a_job_has_four_layouts_and_of_each_the_median_of_its_runs() -> None:
    def ran(job: str, name: str, seconds: float) -> tuple[str, Layout]:
        return job, Layout(name, "vtrain_gpt", {}, seconds)

    rows = [ran("one", name, 1.0) for name in "abc"]
    rows += [ran("two", name, 2.0) for name in "abcd"] + [ran("two", "b", s) for s in (3.0, 7.0)]
    assert grouped(rows) == [
        Job("two", [Layout(n, "vtrain_gpt", {}, 3.0 if n == "b" else 2.0) for n in "abcd"])
    ]


def test_the_page_sums_up_the_jobs_of_a_source_and_lists_those_with_a_large_regret() -> None:
    right = Compared("right", "abcde", MEASURED, TABLES[0][0])
    wrong = Compared("wrong", "abcde", MEASURED, TABLES[2][0])
    text = page({"source": [right, right, wrong]}, 22, 2)
    figures = ["3", "15", "0.0 %", "200.0 %", "100.0 %", "67 %", "60 %", "1.00"]
    assert f"| source | {' | '.join(figures)} |" in text
    assert "| source | wrong | c | b | 100.0 % |" in text
    assert "| source | right |" not in text
    assert "at most 2 layouts" in text


def test_the_layouts_of_others_are_recipes(shared: Path) -> None:
    sources = {"one": vtrain("single"), "more": vtrain("multi"), "bloom": bloom(), "hf": nanotron()}
    assert {name: len(jobs) for name, jobs in sources.items()} == {
        "one": 76, "more": 4, "bloom": 3, "hf": 22,
    }  # fmt: skip
    assert bridge() < 4
    for jobs in sources.values():
        layouts = jobs[-1].layouts
        made = layouts[-1].recipe()
        split = made.parallelism
        assert split.tp * split.pp * (split.dp or 1) == made.cluster.gpus
        assert f"tp {split.tp} pp {split.pp} dp {split.dp}, micro-batch" in layouts[-1].name
        assert f"batch {made.training.global_batch:,}" in jobs[-1].name
