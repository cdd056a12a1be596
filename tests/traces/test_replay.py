"""``traincast replay`` and its parts: recordings simulated again; parts of timelines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed, Graph, Memory
from sim.machine.hardware import ideal
from sim.runs.schedule_run import plan_of, run_plan
from sim.timeline import Timeline
from traces import cut
from traces.own import perfetto
from traces.own import recording as own
from traces.reading import read
from traces.recording import Recording, Selection
from traces.replay import replays, ways

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pipeline(tmp_path: Path) -> tuple[Path, Timeline]:
    """A simulated 1F1B step in one of our own files."""
    times = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.5}
    timeline = run_plan(plan_of("one_f_one_b", 4, 6, 1), times)
    path = tmp_path / "timeline.json.gz"
    perfetto.write(timeline, path)
    return path, timeline


def table(gap: dict[int, float]) -> pd.DataFrame:
    """Two replicas of one stage, F = 5 and B = 7 s, and the host between them, by step."""
    rows = []
    for step, late in gap.items():
        for replica in (0, 1):
            f, b = 5 + replica, 12 + replica + late
            rows += [
                (step, replica, "forward-compute", 0, f),
                (step, replica, "backward-compute", f + late, b),
                (step, replica, "grads-reduce-scatter", b, 15 + late),
            ]
    frame = pd.DataFrame(rows, columns=["step", "dp_rank", "optype", "start_ts", "end"])
    return frame.assign(
        rank=frame["dp_rank"], stage=0, duration=frame["end"] - frame["start_ts"], seq_id=0,
        mc=0, mb_id=0, gmc=0,
    )  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    table({5: 1.0, 8: 1.0, 9: 2.0}).to_parquet(path)
    return path


def test_our_own_file_replays_as_it_was(pipeline: tuple[Path, Timeline]) -> None:
    path, timeline = pipeline
    recording = read([path])
    assert recording.format == "traincast"
    assert recording.timeline.start.tolist() == timeline.start.tolist()
    graphs = recording.timeline.graph, timeline.graph
    assert [graphs[0].op(i) for i in range(50)] == [graphs[1].op(i) for i in range(50)]
    for hosts in ("anchored", "none"):
        found = replays.replay(recording, hosts)
        assert found.timeline.end.tolist() == pytest.approx(timeline.end.tolist(), abs=1e-9)
        assert found.end_errors().max() < 1e-9
        assert found.of_rank(2)[1] == pytest.approx(found.of_rank(2)[0])


def test_what_the_host_took_is_left_out_with_none(tmp_path: Path) -> None:
    """A kernel of 3 s behind a launch of 2 s and a lag of 4 s."""
    b = Builder()
    launch = b.add("launch", 0, "host", Fixed(2.0, "host"))
    kernel = b.add("gemm", 0, "compute", Fixed(3.0), waits=[launch])
    b.wait(kernel, launch, 4.0)
    path = tmp_path / "timeline.json.gz"
    perfetto.write(simulate(b.graph(), ideal(b.graph())), path)
    recording = read([path])
    assert replays.replay(recording).timeline.end.tolist() == [2, 9]
    assert replays.replay(recording, "none").timeline.end.tolist() == [0, 3]


def test_ops_that_a_replay_needs_beside_the_recorded_ones_are_not_compared(
    pipeline: tuple[Path, Timeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a clock of 2 s, for which everything waits."""

    def late(recording: Recording) -> Graph:
        graph, b = own.as_recorded(recording), Builder()
        clock = b.add("clock", 0, "clock", Fixed(2.0, "host"))
        for i in range(len(graph)):
            op = graph.op(i)
            waits = [clock, *(graph.waits(i) + 1).tolist()]
            b.add(op.name, op.rank, op.stream, op.work, waits)
        for part in range(len(graph.part_work)):
            members = [i + 1 for i in range(len(graph)) if part in graph.parts(i)]
            b.join(members, graph.works[graph.part_work[part]])
        return b.graph()

    monkeypatch.setattr(ways, "WAYS", {"traincast": {"late": late}})
    found = replays.replay(read([pipeline[0]]), "late")
    assert found.timeline.start.min() == 2
    assert found.timeline.end.tolist() == pytest.approx((pipeline[1].end + 2).tolist())
    assert found.end_errors().max() < 1e-9


def test_steps_and_ranks_in_json(trace: Path, traincast: Command) -> None:
    code, said, _ = traincast("replay", trace, "--hosts", "none", "--json")
    assert code == 0
    result = json.loads(said)
    assert result["steps"] == [5, 8, 9]
    assert result["step_s"] == [16, 16, 17]
    assert result["replayed_step_s"] == [15, 15, 15]
    assert result["per_rank"] == [
        {"rank": rank, "span_s": pytest.approx(49 / 3), "replayed_span_s": 15} for rank in (0, 1)
    ]
    # backwards and collectives end 1, 1 and 2 s too early: the last third of all ends
    assert result["end_error_p95_s"] == pytest.approx(2)
    assert (result["format"], result["hosts"], result["ops"]) == ("stragglers", "none", 18)


def test_the_host_is_anchored_unless_said_otherwise(trace: Path, traincast: Command) -> None:
    result = json.loads(traincast("replay", trace, "--json")[1])
    assert result["hosts"] == "anchored"
    assert result["replayed_step_s"] == result["step_s"]
    assert result["end_error_p95_s"] == 0


def test_one_step(trace: Path, traincast: Command) -> None:
    """A number and not a list; its host is learnt from the others, which took 1 and 2 s."""
    result = json.loads(traincast("replay", trace, "--step", 8, "--json")[1])
    assert (result["steps"], result["step_s"], result["replayed_step_s"]) == ([8], 16, 16)
    line = ("replay", trace, "--step", 8, "--hosts", "modelled", "--json")
    result = json.loads(traincast(*line)[1])
    assert (result["steps"], result["step_s"]) == ([8], 16)
    assert result["replayed_step_s"] == pytest.approx(15 + 1.5)


def test_some_ranks_and_seconds(trace: Path, traincast: Command) -> None:
    line = ("replay", trace, "--step", 5, "--ranks", "1", "--window", "0:7.5", "--json")
    result = json.loads(traincast(*line)[1])
    assert [row["rank"] for row in result["per_rank"]] == [1]
    assert result["ops"] == 2
    line = ("replay", trace, "--hosts", "none", "--window", "17:48.5", "--json")
    result = json.loads(traincast(*line)[1])
    assert result["steps"] == [8, 9]  # steps last 16, 16 and 17 s
    assert result["step_s"] == [16, 17]


def test_the_table_and_the_file(trace: Path, tmp_path: Path, traincast: Command) -> None:
    out = tmp_path / "replayed.json.gz"
    code, said, error = traincast("replay", trace, "--hosts", "none", "--out", out)
    assert (code, error) == (0, "")
    for text in ("recorded", "replayed", "-6.25 %", "mean", "ops end within 2 s", "replayed.json"):
        assert text in said
    assert perfetto.read(out).end.max() == 16 + 16 + 15


def test_a_folder_is_read_for_what_is_in_it(trace: Path) -> None:
    (trace.parent / "notes.txt").write_text("none of a trace")
    recording = read([trace.parent])
    assert recording.files == (trace,)
    (trace.parent / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is not a trace that can be read"):
        read([trace.parent / "empty"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "no file or folder nowhere"),
        (["README.md"], "README.md is not a trace that can be read; formats are traincast, "),
        (["TRACE", "--hosts", "some"], "with hosts anchored or modelled or none, not some"),
        (["TRACE", "--step", "7"], "has no step 7; there are 5, 8, 9"),
        (["TRACE", "--step", "7", "--hosts", "modelled"], "there is no step 7; there are 5, 8, 9"),
        (["TRACE", "--ranks", "2"], "no rank 2 was recorded; there are 0, 1"),
        (["TRACE", "--ranks", "x"], "--ranks takes ranks such as 0,4-7"),
        (["TRACE", "--window", "5:4"], "--window takes FROM:TO"),
        (["TRACE", "--window", "90:95"], "no op lies in the window; the recording lasts 49 s"),
        (["TRACE", "--out", "TRACE"], "would replace"),
        (["TRACE", "TRACE"], "is one file, not 2"),
        (["OWN", "OWN"], "one timeline of traincast is read at a time"),
        (["OWN", "--hosts", "modelled"], "with hosts anchored or none, not modelled"),
        (["OWN", "--step", "3"], "has no step 3; there are 0 to 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, trace: Path, pipeline: tuple[Path, Timeline],
    traincast: Command,
) -> None:  # fmt: skip
    names = {"TRACE": str(trace), "OWN": str(pipeline[0])}
    code, said, error = traincast("replay", *(names.get(text, text) for text in arguments))
    assert code == 2
    assert said == ""
    assert sentence in error
    assert len(error.splitlines()) == 1


def small() -> Timeline:
    """Two ranks that meet twice, with a wait, lags, tails and memory."""
    b = Builder()
    work = Communication("all_reduce", 8.0, (0, 1), "dp")
    a = b.add("a", 0, "compute", Fixed(5.0), memory=[Memory("weights", 3.0, "start")])
    meet = [b.add("meet", rank, "dp", work, lag=0.5 * rank) for rank in (0, 1)]
    b.join(meet, work, [0.0, 0.25])
    c = b.add("c", 1, "compute", Fixed(4.0), memory=[Memory("weights", -3.0, "end")])
    b.wait(c, a, 2.0)
    b.wait(c, meet[1], 1.0)
    b.join([b.add("again", rank, "dp", work) for rank in (0, 1)])
    graph = b.graph()
    return simulate(graph, ideal(graph, p2p=3.0))


def test_a_part_of_a_timeline_keeps_what_is_inside() -> None:
    timeline = small()
    part = cut.keep(timeline, np.array([False, True, True, True, False, True]))
    graph = part.graph
    assert [graph.op(i).name for i in range(4)] == ["meet", "meet", "c", "again"]
    assert part.start.tolist() == timeline.start[[1, 2, 3, 5]].tolist()
    assert graph.waits(2).tolist() == [1]  # the wait for "a" went with it
    assert graph.wait_lag.tolist() == [1.0]
    assert [graph.parts(i).tolist() for i in range(4)] == [[0], [0], [], [1]]
    assert graph.part_tail.tolist() == [0.0, 0.25, 0.0]
    assert graph.lag.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert graph.memory_bytes.tolist() == [-3.0]
    assert Fixed(5.0) not in graph.works
    assert [graph.works[k].collective for k in graph.part_work] == ["all_reduce", "all_reduce"]


def test_all_of_a_timeline_is_itself() -> None:
    timeline = small()
    assert cut.select(timeline, Selection()) is timeline
    whole = cut.keep(timeline, np.ones(len(timeline.graph), bool)).graph
    again = simulate(whole, ideal(whole, p2p=3.0))
    assert again.end.tolist() == timeline.end.tolist()


def unexplained(kineto: Any, late: int) -> Path:
    """Twelve kernels of 1,000 us; every other one starts ``late`` us after the one before it."""
    rows, at = [], 100
    for n in range(12):
        at += late if n % 2 else 10
        rows += kineto.launched("gemm" if n % 4 < 2 else "norm", 6 * n, at, 1000, n + 1)
        at += 1000
    return kineto.write(rows)


@pytest.mark.parametrize(("late", "says"), [(60, False), (700, True)])
def test_a_replay_that_misses_its_recording_by_over_2_percent_says_so(
    kineto: Any, traincast: Command, late: int, says: bool
) -> None:
    """Modelled, delays of 60 us or of 700 become the median of those and 10; anchored they stay."""
    path = unexplained(kineto, late)
    arguments = ["replay", path, "--hosts", "modelled", "--json", "--what-if", "compute * 0.5"]
    code, out, _ = traincast(*arguments)
    result = json.loads(out)
    said = [one for one in result["warnings"] if "misses the recording" in one]
    assert (code, bool(said), result["what_if"][0]["misses_recording"]) == (0, says, says)
    if says:
        share = abs(result["replayed_step_s"] / result["step_s"] - 1)
        assert share > 0.02
        assert f"by {share:.1%} of a step" in said[0]
        assert "gains of edits are off too" in said[0]
        assert "% ?" in traincast(*arguments[:4], *arguments[5:])[1]
    _, out, _ = traincast("replay", path, "--json")
    assert not [one for one in json.loads(out)["warnings"] if "misses" in one]


def test_a_replay_without_host_says_why_it_misses(kineto: Any, traincast: Command) -> None:
    rows = [row for n in range(3) for row in kineto.launched("gemm", 50 * n, 50 * n + 9, 20, n + 1)]
    _, out, _ = traincast("replay", kineto.write(rows), "--hosts", "none", "--json")
    assert "because calls of the host take no time in it" in json.loads(out)["warnings"][-1]


def test_late_starts_of_graphs_are_kept(shared: Path, traincast: Command) -> None:
    """Six graphs whose first node comes 60 ms after the kernel before it."""
    path = shared.parent / "cases/traces/3_graph_starts_late.json"
    for hosts in ("anchored", "modelled"):
        _, out, _ = traincast("replay", path, "--hosts", hosts, "--json")
        result = json.loads(out)
        assert result["replayed_step_s"] == pytest.approx(result["step_s"], rel=1e-3)
        assert result["warnings"] == []
    _, out, _ = traincast("analyze", path, "--json")
    assert json.loads(out)["critical_path"]["by_cause_s"]["late start"] == pytest.approx(0.36)
