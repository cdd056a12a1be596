"""The same job in several ways, side by side; searched schedules get the times of its stages."""

from __future__ import annotations

import json
from dataclasses import replace
from math import fsum
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

import schedules
from schedules import zb_1p
from schedules.search.timing import longest_span
from sim.analysis.words import short_cause
from sim.machine import cluster as clusters
from sim.plots.frontier import Point, best_of
from sim.runs.compare import by_schedule, by_value, compare
from sim.runs.run import job_of, load, run
from sim.runs.stage_times import stage_seconds
from sim.runs.winner import parts, why
from traces import schedule_csv
from traincast.commands.parts import comparison
from traincast.main import app

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[3] / "validation/recipes/zero_bubble_14.6b_1f1b.toml"
SMALL = {
    "model.layers": 8, "cluster.gpus": 4, "parallelism.pp": 4, "training.global_batch": 8,
    "schedule.layers_per_stage": None, "parallelism.p2p": "direction",
}  # fmt: skip


@pytest.fixture(scope="module")
def ways() -> dict[str, object]:
    base = load(RECIPE, SMALL)
    return {way.name: way for way in compare(RECIPE, by_schedule(["all"], base, SMALL))}


def test_every_schedule_runs_the_recipe(ways) -> None:  # type: ignore[no-untyped-def]
    assert set(ways) == set(schedules.names())
    assert [way.refused for way in ways.values() if way.result is None] == []


def test_all_ways_do_the_same_work(ways) -> None:  # type: ignore[no-untyped-def]
    """Kernels' FLOPs of a step do not depend on the order, nor does the number of their runs."""
    flops = set()
    for way in ways.values():
        graph = way.result.timeline.graph
        each = [getattr(work, "flops", 0.0) for work in graph.works]
        steps = way.result.recipe.simulation.steps
        flops.add(round(sum(each[w] for w in graph.work.tolist()) / steps))
    assert len(flops) == 1


def test_the_winner_is_explained(ways) -> None:  # type: ignore[no-untyped-def]
    """Both steps are the sums of their parts, and the winner is the fastest that fits."""
    found = why(list(ways.values()))
    seconds = {name: way.result.summary["step_time_s"] for name, way in ways.items()}
    assert [found.winner, found.runner_up] == sorted(seconds, key=seconds.__getitem__)[:2]
    before, after = (fsum(each) for each in zip(*found.parts.values(), strict=True))
    assert (before, after) == pytest.approx((found.before_s, found.after_s), rel=1e-12)
    for way in ways.values():
        assert fsum(parts(way.result).values()) == pytest.approx(seconds[way.name], rel=1e-12)


def test_zero_bubble_beats_1f1b_and_needs_no_less_memory(ways) -> None:  # type: ignore[no-untyped-def]
    """ZB-H1 in 1F1B's memory (half is held until W), ZB-2p in more; both are faster."""
    seconds = {name: way.result.timeline.seconds for name, way in ways.items() if way.result}
    assert seconds["zb_2p"] < seconds["zb_1p"] < seconds["one_f_one_b"] < seconds["gpipe"] * 1.1
    assert seconds["zb_h1"] < seconds["one_f_one_b"]


def test_a_searched_schedule_gets_the_times_of_its_stages() -> None:
    """The plan in the job is one found for those times, and the times are those of the timeline."""
    recipe = load(RECIPE, SMALL | {"schedule.name": "zb_1p", "simulation.clock": "boost"})
    cluster = clusters.at_boost(clusters.load(recipe.cluster.topology, 4))
    job = job_of(recipe, cluster)
    times = stage_seconds(job, cluster)
    given = times["F"], times["I"], times["W"], times["p2p"]
    assert job.plan in zb_1p.orders(4, 8, given, "makespan", "direction")
    table = run(recipe).timeline.to_pandas()
    for stage in range(4):
        one = table[(table.stage == stage) & (table.microbatch == 3) & (table.stream == "compute")]
        spans = {
            phase: rows.end.max() - rows.start.min()
            for phase, rows in one.groupby("phase", observed=True)
        }
        for phase in "FIW":
            assert times[phase][stage] <= spans[phase] * (1 + 1e-9)
            assert spans[phase] < 1.2 * times[phase][stage]  # p2p beside it holds some SMs


def test_the_first_stage_has_the_embedding_and_the_last_one_the_head() -> None:
    """So both take longer than the equal ones between them; one stage alone is given plainly."""
    recipe = load(RECIPE, SMALL)
    cluster = clusters.at_boost(clusters.load(recipe.cluster.topology, 4))
    times = stage_seconds(job_of(recipe, cluster), cluster)
    for phase in "FIW":
        first, *middle, last = times[phase]
        assert len(middle) == 2
        assert middle[0] == middle[1] <= first < last
    assert times["F"][0] > times["F"][1]
    assert isinstance(times["p2p"], float)
    whole = load(RECIPE, SMALL | {"parallelism.pp": 1, "cluster.gpus": 1, "model.layers": 2})
    alone = stage_seconds(job_of(whole, cluster), cluster)
    assert all(isinstance(seconds, float) for seconds in alone.values())
    assert alone["F"] == pytest.approx(times["F"][0] + times["F"][3] - times["F"][1], rel=1e-9)


def test_a_search_that_knows_the_stages_has_no_longer_span() -> None:
    """Than one that is given the mean of their times, for the times that the stages do take."""
    recipe = load(RECIPE, SMALL | {"schedule.name": "zb_1p"})
    cluster = clusters.load(recipe.cluster.topology, 4)
    job = job_of(recipe, cluster)
    times = dict(stage_seconds(job, cluster))
    even = {key: fmean(times[key]) for key in "FIW"} | {"p2p": times["p2p"]}
    blind = schedules.load("zb_1p")(4, 8, **even)
    assert longest_span(job.plan, **times) <= longest_span(blind, **times)


def test_values_make_all_combinations() -> None:
    ways = by_value({"parallelism.tp": [1, 2], "parallelism.sp": [True]}, {"cluster.gpus": 8})
    assert ways["tp=2 sp=True"] == {
        "cluster.gpus": 8, "parallelism.tp": 2, "parallelism.sp": True
    }  # fmt: skip


def test_no_point_of_the_frontier_is_beaten() -> None:
    points = [
        Point("a", 3.0, 1.0), Point("b", 1.0, 5.0), Point("c", 2.0, 5.0), Point("d", 2.0, 4.0),
    ]  # fmt: skip
    assert [point.name for point in best_of(points)] == ["b", "d", "a"]


def test_the_command_prints_writes_and_gives_reasons(tmp_path: Path) -> None:
    settings = [f"--set={key}={'' if value is None else value}" for key, value in SMALL.items()]
    line = ["compare", str(RECIPE), "--schedules", "gpipe,dualpipe", *settings]
    line.append("--set=training.global_batch=6")
    shown = CliRunner().invoke(app, [*line, "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "dualpipe: dualpipe needs an even number of microbatches" in shown.output
    written = ["compare.html", "compare.png", "frontier.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    rows = json.loads(CliRunner().invoke(app, [*line, "--json"]).output)
    assert [row["name"] for row in rows] == ["gpipe", "dualpipe"]
    assert rows[0]["step_time_s"] > 0
    assert "at least two per rank" in rows[1]["refused"]


@pytest.mark.parametrize("columns", [80, 160])
def test_the_table_says_why_and_is_whole(ways, columns, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """At 80 columns too every figure is there, and each cause with its share of the step."""
    monkeypatch.setenv("COLUMNS", str(columns))
    comparison.show(list(ways.values()))
    needed = [entry["device_bytes"] for entry in ways["zb_2p"].result.summary["memory"]]
    assert comparison.row(ways["zb_2p"].result.summary)[-3] == f"{max(needed) / 2**30:.2f}"
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    for way in ways.values():
        summary = way.result.summary
        (first,) = [line for line in out.splitlines() if line.startswith(f"{way.name} ")]
        assert {way.name, *comparison.row(summary)[-3:]} <= set(first.split())
        by_cause = summary["bubble"]["by_cause_s"]
        most = max(by_cause, key=by_cause.__getitem__)
        share = f"{by_cause[most] / summary['step_time_s']:.1%}"
        assert f"{short_cause(most)} {share}" in first
    line = next(line for line in out.splitlines() if line.startswith("zb_2p"))
    assert line.count("%") == (2 if columns == 80 else 4)  # all three causes in one line, or not


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ([], "takes either --schedules"),
        (["--schedules", "gpipe", "--vary", "parallelism.tp=1,2"], "takes either --schedules"),
        (["--schedules", "zbx"], "no schedule 'zbx'; did you mean zb_v? There are"),
        (["--schedules", "from_csv"], "from_csv is the order in schedule.csv, which the recipe"),
        ([], "--vary schedule.name=a,b goes with further --vary"),
        (["--vary", "tp"], "--vary takes KEY=V1,V2"),
    ],
)
def test_bad_comparisons_get_one_sentence(line: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["compare", str(RECIPE), *line])
    assert isinstance(result.exception, ValueError)
    assert sentence in str(result.exception)


TINY = """
model = { preset = "gpt-22b", layers = 8, attention = "flash" }
cluster = { topology = "dgx_a100", gpus = 2 }
parallelism = { pp = 2, p2p = "direction" }
schedule = { SCHEDULE }
training = { global_batch = 4 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A recipe of pp 2, 4 microbatches and an order in a file."""
    order = schedule_csv.text(schedules.load("gpipe")(2, 4))
    (tmp_path / "order.csv").write_text(order)
    file = tmp_path / "recipe.toml"
    file.write_text(TINY.replace("SCHEDULE", 'csv = "order.csv"'))
    return file


def test_files_are_not_named_among_json(tiny: Path, tmp_path: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    """What is printed is JSON alone, and in the order that was asked for."""
    line = ["compare", tiny, "--schedules", "gpipe,one_f_one_b,from_csv", "--out", tmp_path / "d"]
    code, out, err = traincast(*line, "--json")
    assert (code, err) == (0, "")
    assert [row["name"] for row in json.loads(out)] == ["gpipe", "one_f_one_b", "from_csv"]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == sorted(
        [comparison.PAGE, *comparison.PICTURES]
    )
    assert traincast(*line)[1].count("wrote ") == 4


def test_the_order_of_the_recipe_takes_part(tiny: Path) -> None:
    """When it is named, and with all; other schedules leave it out."""
    base = load(tiny)
    ways = by_schedule(["gpipe", "from_csv"], base)
    own, file = {way.name: way.result for way in compare(tiny, ways)}.values()
    assert own
    assert file
    assert own.recipe.schedule.csv is None
    assert file.recipe.schedule.csv == base.schedule.csv
    assert file.timeline.seconds == own.timeline.seconds
    assert list(by_schedule(["all"], base)) == [*schedules.names(), "from_csv"]


def test_the_fastest_comes_first_and_what_is_refused_last(tiny: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    line = ("compare", tiny, "--vary", "schedule.layers_per_stage=[7,1],[9,9],[4,4],[5,3]")
    code, out, _ = traincast(*line)
    assert code == 0
    names = [f"layers_per_stage=[{split}]" for split in ("4, 4", "5, 3", "7, 1")]
    first = [line.split("  ")[0].strip() for line in out.splitlines()]
    said = "".join(first)
    assert [said.index(name[-6:]) for name in names] == sorted(said.index(n[-6:]) for n in names)
    assert "layers_per_stage=[9, 9]: schedule.layers_per_stage adds up to 18" in out


def test_ways_of_which_none_runs_are_bad_input(tiny: Path, tmp_path: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    """The reasons are given all the same."""
    line = ("compare", tiny, "--vary", "parallelism.tp=3,5", "--out", tmp_path / "d")
    code, out, _ = traincast(*line)
    assert code == 2
    assert out.count("but cluster.gpus = 2") == 2
    code, out, _ = traincast(*line, "--json")
    assert (code, len(json.loads(out))) == (2, 2)
    assert not (tmp_path / "d").exists()


def test_a_deadlock_is_short_in_the_table_and_whole_in_json(tiny: Path, traincast) -> None:  # type: ignore[no-untyped-def]
    (tiny.parent / "order.csv").write_text(
        schedule_csv.text(schedules.load("interleaved_1f1b")(2, 4))
    )
    line = ["compare", tiny, "--schedules", "from_csv,gpipe", "--set", "parallelism.p2p=batched"]
    (said,) = [row for row in traincast(*line)[1].splitlines() if row.startswith("from_csv: ")]
    assert said.endswith('and so on in a circle; p2p = "direction" runs it')
    assert said.count("waits for") == 1
    whole = json.loads(traincast(*line, "--json")[1])[0]["refused"]
    assert whole.count("waits for") > 1
    assert whole.endswith('; p2p = "direction" runs it')


def test_what_does_not_fit_is_said_below_the_table(ways, capsys) -> None:  # type: ignore[no-untyped-def]
    """Those above the median need, by a GPU that holds just as much; without colours too."""
    needs = {
        name: max(entry["device_bytes"] for entry in way.result.summary["memory"])
        for name, way in ways.items()
    }
    limit = sorted(needs.values())[len(needs) // 2]
    found = {}
    for name, way in ways.items():
        cluster = way.result.cluster
        small = replace(cluster, gpu=replace(cluster.gpu, memory=limit))
        found[name] = replace(way.result, cluster=small)
    comparison.warn_overflow(found)
    said = capsys.readouterr().out
    assert said.startswith("out of memory with context and NCCL: ")
    over = {name for name, need in needs.items() if need > limit}
    assert {part.split(" (")[0] for part in said.split(": ")[1].split(", ")} == over
