"""Tables of timed operations: what is read, its replays, and what stragglers cost in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sim.analysis.longest import Paths, taken
from sim.analysis.stragglers import replicas, stragglers
from sim.engine import simulate
from sim.graph import Graph
from sim.machine.hardware import ideal
from traces import cut
from traces.reading import read
from traces.recording import Recording, Selection
from traces.replay import gaps

COLUMNS = ["stage", "optype", "start_ts", "end", "mb_id", "gmc"]
STEP = [  # one microbatch through two stages: F = 5, B = 7, a transfer 1
    (0, "params-all-gather", 0, 1, -1, -1),
    (0, "forward-compute", 1, 6, 0, 0),
    (0, "forward-send", 6, 7, -1, -1),
    (0, "backward-recv", 0, 20, -1, -1),
    (0, "backward-compute", 20, 27, 0, 0),
    (0, "gc", 27, 27, 0, -1),
    (0, "layernorm-grads-all-reduce", 27, 27.5, -1, -1),
    (0, "embedding-grads-all-reduce", 27.5, 29, -1, -1),
    (0, "grads-reduce-scatter", 29, 31, -1, -1),
    (0, "optimizer-clip-main-grad", 31, 32, -1, -1),
    (0, "optimizer", 32, 34, -1, -1),
    (1, "params-all-gather", 0, 1, -1, -1),
    (1, "forward-recv", 0, 7, -1, -1),
    (1, "forward-compute", 7, 12, 0, 1),
    (1, "backward-compute", 12, 19, 0, 1),
    (1, "backward-send", 19, 20, -1, -1),
    (1, "gc", 19, 19, 0, -1),
    (1, "layernorm-grads-all-reduce", 19, 19.5, -1, -1),
    (1, "embedding-grads-all-reduce", 19.5, 29, -1, -1),
    (1, "grads-reduce-scatter", 29, 31, -1, -1),
    (1, "optimizer-clip-main-grad", 31, 32, -1, -1),
    (1, "optimizer", 32, 33, -1, -1),
]


def table(steps: dict[int, float]) -> pd.DataFrame:
    """Steps by number; in each the host loads data for so long before stage 0 computes."""
    out = []
    for step, late in steps.items():
        rows = pd.DataFrame(STEP, columns=COLUMNS)
        moves = (rows["start_ts"] >= 1) | rows["optype"].str.endswith("recv")
        rows.loc[rows["start_ts"] >= 1, "start_ts"] += late
        rows.loc[moves, "end"] += late
        out.append(rows.assign(step=step))
    rows = pd.concat(out, ignore_index=True)
    return rows.assign(
        dp_rank=0, rank=4 * rows["stage"], duration=rows["end"] - rows["start_ts"], seq_id=0,
        mc=rows["optype"].str.contains("compute|params|scatter") - 1,
    )  # fmt: skip


def written(rows: pd.DataFrame, folder: Path) -> Path:
    path = folder / "trace.parquet"
    rows.to_parquet(path)
    return path


def seconds(recording: Recording, graph: Graph, step: int) -> float:
    some = cut.subgraph(graph, recording.timeline.graph.step == step)
    return simulate(some, ideal(some)).seconds


def test_every_row_is_an_op(tmp_path: Path) -> None:
    recording = read([written(table({7: 0.0, 9: 0.0}), tmp_path)])
    timeline, graph = recording.timeline, recording.timeline.graph
    assert recording.format == "stragglers"
    assert recording.steps == (7, 9)
    assert len(graph) == 2 * len(STEP)
    assert recording.counts["collectives"] == recording.counts["collectives_matched"] + 8
    assert graph.ranks().tolist() == [0, 4]
    assert timeline.seconds == 2 * 34
    frame = timeline.to_pandas().query("rank == 4 and name == 'forward-compute'")
    assert frame[["start", "end", "stage", "microbatch"]].to_numpy().tolist() == [
        [7, 12, 1, 0],
        [41, 46, 1, 0],
    ]
    of = {graph.names[graph.name[i]]: graph.op(i) for i in range(len(graph))}
    assert of["forward-compute"].phase == "F"
    assert of["backward-send"].work.dimension == "pp"
    assert of["backward-recv"].work.seconds == 1  # its sender's; its own was 20


def test_replay_by_durations_and_waits_alone(tmp_path: Path) -> None:
    """Nothing idles but for the host: without it a step takes 34 s, and as recorded 34 + 2."""
    recording = read([written(table({7: 2.0, 9: 2.0, 10: 2.0}), tmp_path)])
    graph = recording.timeline.graph
    for step in range(3):
        assert seconds(recording, graph, step) == pytest.approx(34)
        assert seconds(recording, gaps.anchored(recording), step) == pytest.approx(36)
        assert seconds(recording, gaps.modelled(recording), step) == pytest.approx(36)


def test_gaps_come_from_other_steps(tmp_path: Path) -> None:
    recording = read([written(table({1: 1.0, 2: 4.0, 3: 1.0, 4: 4.0}), tmp_path)])
    graph = gaps.modelled(recording)
    assert [seconds(recording, graph, k) for k in range(4)] == pytest.approx([38, 35, 38, 35])


def test_gaps_need_another_step(tmp_path: Path) -> None:
    path = written(table({1: 1.0, 2: 4.0}), tmp_path)
    one = read([path], Selection(step=2))
    assert one.steps == (2,)
    assert one.timeline.seconds == 38
    with pytest.raises(ValueError, match="learnt from other steps"):
        gaps.modelled(one)


def test_anchored_whole_recording_runs_as_recorded(tmp_path: Path) -> None:
    recording = read([written(table({3: 2.0}), tmp_path)])
    graph = gaps.anchored(recording)
    replayed = simulate(graph, ideal(graph))
    assert replayed.start.tolist() == pytest.approx(recording.timeline.start.tolist())
    assert replayed.end.tolist() == pytest.approx(recording.timeline.end.tolist())


def test_a_gap_in_which_the_worker_ran_something_is_not_the_hosts(tmp_path: Path) -> None:
    """A receive that nothing demands, posted only when the computing before it was over."""
    recording = read([written(table({3: 0.0}), tmp_path)])
    timeline = recording.timeline
    idle = gaps.idle(timeline)
    stage = timeline.graph.rank == 4
    by_name = dict(zip(timeline.to_pandas()["name"][stage], idle[stage], strict=True))
    assert by_name["backward-send"] == 0
    assert by_name["grads-reduce-scatter"] == 0
    assert by_name["forward-compute"] == 0
    assert np.isinf(by_name["params-all-gather"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: rows.drop(columns="gmc"), "has no column gmc"),
        (lambda rows: rows.assign(optype="sleep"), "has operations sleep; known are forward-com"),
        (lambda rows: rows[rows["optype"] != "forward-recv"], "stage 0 has 1 forward-send, but"),
        (lambda rows: rows[~rows["optype"].str.contains("compute")], "without forward and backw"),
        (lambda rows: rows.assign(duration=-1.0), "times that are negative or no numbers"),
        (lambda rows: rows.assign(duration="long"), "times that are negative or no numbers"),
        (lambda rows: rows.assign(stage="first"), "entries of stage that are no whole numbers"),
        (lambda rows: rows.assign(gmc=None), "entries of gmc that are no whole numbers"),
        (lambda rows: rows.assign(rank=2.0**40), "entries of rank that are no whole numbers"),
        (lambda rows: rows.assign(rank=-1), "entries of rank that are no whole numbers from 0 on"),
        (lambda rows: rows.assign(mb_id=-2), "of mb_id that are no whole numbers from -1 on"),
        (lambda rows: rows[:0], "has no rows"),
        (lambda rows: rows[rows["optype"] != "backward-compute"], "for 0 computes"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    change: Callable[[pd.DataFrame], pd.DataFrame], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read([written(change(table({1: 0.0})), tmp_path)])


def test_a_step_or_rank_that_is_not_there(tmp_path: Path) -> None:
    path = written(table({1: 0.0, 5: 0.0}), tmp_path)
    with pytest.raises(ValueError, match="no step 2; there are 1, 5"):
        read([path], Selection(step=2))
    with pytest.raises(ValueError, match="no rank 1 was recorded; there are 0, 4"):
        read([path], Selection(ranks=[1]))
    assert read([path], Selection(ranks=[4])).timeline.graph.ranks().tolist() == [4]
    window = read([path], Selection(step=1, window=(29.5, 30))).timeline.to_pandas()
    assert set(window["name"]) == {"grads-reduce-scatter"}


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="is not a Parquet file that can be read"):
        read([path])


def test_one_slow_replica_by_hand(tmp_path: Path) -> None:
    """F takes 3 s on one replica and 5 s on the other, then B 7 s and gradients 2 s on both.

    So a step takes 14 s; if all forwards took their mean, 4 s, it would take 13 s. All of it is
    the second replica's: of the first one's own times none is felt.
    """
    rows = []
    for replica, forward in enumerate((3, 5)):
        rows += [
            (replica, "forward-compute", 0, forward, 0, 0),
            (replica, "backward-compute", forward, forward + 7, 0, 0),
            (replica, "grads-reduce-scatter", forward + 7, 14, -1, -1),
        ]
    frame = pd.DataFrame(rows, columns=["dp_rank", *COLUMNS[1:]])
    frame["duration"] = frame["end"] - frame["start_ts"]
    frame = frame.assign(stage=0, rank=frame["dp_rank"], step=1, seq_id=0, mc=0)
    found = stragglers(read([written(frame, tmp_path)]).timeline)
    assert found.slowdown == pytest.approx(14 / 13)
    assert found.by_replica == pytest.approx({1: 14 / 13, 0: 1.0})
    assert [*found.by_replica] == [1, 0]
    assert found.by_kind == pytest.approx(
        {"forward-compute": 14 / 13, "backward-compute": 1.0, "grads-reduce-scatter": 1.0}
    )
    assert found.worst_ranks == (1,)
    assert found.worst_ranks_share == pytest.approx(1.0)
    assert found.by_step == pytest.approx({0: 14 / 13})


JOBS = ("ST", "SE")
_read: dict[str, Recording] = {}


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest, shared: Path) -> tuple[str, Recording, dict[str, Any]]:
    """A production job's recording, read once, and what its authors' own analysis gave."""
    name = request.param
    folder = shared / "stragglers" / name
    if name not in _read:
        _read[name] = read([folder / f"trace-{name}.parquet"])
    result = json.loads((folder / f"result-{name}.json").read_text())
    for other in ("ms", "mw"):
        result |= json.loads((folder / f"{other}-{name}.json").read_text())
    return name, _read[name], result


def lengths(recording: Recording, graph: Graph) -> np.ndarray:
    """Replayed seconds of each step, alone."""
    timeline = Paths(graph, apart=True).run(taken(recording.timeline))
    return pd.Series(timeline.end).groupby(graph.step).max().to_numpy()


def recorded(recording: Recording) -> np.ndarray:
    timeline, step = recording.timeline, recording.timeline.graph.step
    ends, starts = (pd.Series(column).groupby(step) for column in (timeline.end, timeline.start))
    return (ends.max() - starts.min()).to_numpy()


@pytest.mark.slow
def test_production_jobs_replay(job: tuple[str, Recording, dict[str, Any]]) -> None:
    """Recorded steps from durations and waits alone; the authors are off by 1.9 % and 0.5 %."""
    name, recording, result = job
    assert list(map(str, recording.steps)) == [*result["step_t_base"]]
    assert recorded(recording) == pytest.approx([*result["step_t_base"].values()], abs=2e-6)
    replayed = lengths(recording, recording.timeline.graph)
    shortfall = 1 - replayed / recorded(recording)
    assert 0 < shortfall.mean() <= {"ST": 0.020, "SE": 0.006}[name]
    assert replayed == pytest.approx([*result["step_t_nodelay"].values()], rel=5e-4)


@pytest.mark.slow
def test_production_jobs_replay_with_gaps(job: tuple[str, Recording, dict[str, Any]]) -> None:
    """Gaps of the host, learnt on every second step, explain the others to half a per cent."""
    _, recording, _ = job
    error = lengths(recording, gaps.modelled(recording)) / recorded(recording) - 1
    assert np.abs(error[::2]).mean() <= 0.005
    assert np.abs(error[1::2]).mean() <= 0.005
    error = lengths(recording, gaps.anchored(recording)) / recorded(recording) - 1
    assert np.abs(error).max() <= 0.0005


@pytest.mark.slow
def test_the_engine_replays_as_longest_paths(job: tuple[str, Recording, dict[str, Any]]) -> None:
    _, recording, _ = job
    graph = recording.timeline.graph
    expected = lengths(recording, graph)
    assert [seconds(recording, graph, k) for k in (0, 5)] == [*expected[[0, 5]]]


@pytest.mark.slow
def test_stragglers_of_production_jobs(
    job: tuple[str, Recording, dict[str, Any]], traincast: Callable[..., Any], shared: Path
) -> None:
    """What ``analyze`` says of slowdown and attribution, within a thousandth of the published."""
    name, _, result = job
    code, out, _ = traincast("analyze", shared / "stragglers" / name, "--json")
    assert code == 0
    found = json.loads(out)["stragglers"]
    assert found["slowdown"] == pytest.approx({"ST": 1.179, "SE": 1.537}[name], abs=5e-4)
    assert found["slowdown"] == pytest.approx(result["blocking_slowdown"], rel=1e-3)
    assert found["last_stage_share"] == pytest.approx(result["Ms"], abs=2e-3)
    assert found["worst_ranks_share"] == pytest.approx(result["Mw"], abs=2e-3)
    for mine, theirs in (("replica", "dp_rank"), ("stage", "stage"), ("kind", "optype")):
        table, expected = found[f"by_{mine}"], result[f"blocking_decompose_by_{theirs}"]
        assert next(iter(table)) == next(iter(expected))
        some = {key: value for key, value in table.items() if key in expected}
        assert some == pytest.approx({key: expected[key] for key in some}, abs=1e-3)
    assert found["by_step"] == pytest.approx(result["blocking_step_slowdown"], rel=1e-3)


def test_ranks_of_a_pipeline_are_one_replica(shared: Path) -> None:
    path = shared / "stragglers/ST/trace-ST.parquet"
    rows = pd.read_parquet(path, columns=["rank", "dp_rank"]).drop_duplicates()
    found = replicas(read([path], Selection(step=23)).timeline.graph)
    assert found[rows["rank"]].tolist() == rows["dp_rank"].tolist()


def test_a_worker_may_have_recorded_nothing_of_a_step(tmp_path: Path) -> None:
    """Its next step then waits for no step of its own."""
    rows = table({1: 0.0, 2: 0.5, 3: 0.0})
    recording = read([written(rows[(rows["step"] != 2) | (rows["rank"] != 4)], tmp_path)])
    assert recording.steps == (1, 2, 3)
    graph = recording.timeline.graph
    assert (np.unique(graph.step[graph.rank == 4]) == [0, 2]).all()
