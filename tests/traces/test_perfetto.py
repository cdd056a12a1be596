"""Our trace file: read back equal, the same bytes twice, and what Perfetto needs of it."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from sim.graph import Builder, Communication, Compute, Copy, Fixed, Graph, Memory
from sim.timeline import Timeline
from traces.chrome import stamps
from traces.own import perfetto


def some_timeline(seed: int = 0, ops: int = 80, ranks: int = 3) -> Timeline:
    """Every kind of work, relation and column; times are thirds, which no decimal holds."""
    rng, b = np.random.default_rng(seed), Builder()
    works = [
        Compute("gemm", 12.0, 3.0, (1, 2, 3, 4)),
        Copy(5.0, "d2h"),
        Fixed(2.0),
        Communication("all_reduce", 7.0, (0, 1, 2), "tp"),
    ]
    for k in range(ops):
        work = works[rng.integers(0, 4)]
        stream = "tp" if isinstance(work, Communication) else "compute"
        waits = rng.integers(0, k, rng.integers(0, 3)).tolist() if k else []
        changes = [Memory("ab"[k % 2], float(k), "start"), Memory("ab"[k % 2], -float(k), "end")]
        b.add(
            f"op {k % 7}", int(rng.integers(0, ranks)), stream, work, waits,
            phase=["", "F", "I"][k % 3], stage=k % ranks, microbatch=k % 4 - 1, layer=k % 5,
            lag=float(k % 2), memory=changes[: k % 3],
        )  # fmt: skip
    b.wait(ops - 1, 0, lag=0.1)
    for _ in range(ops // 6):
        members = np.sort(rng.choice(ops, 2, replace=False)).tolist()
        b.join(members, works[3], tails=rng.random(2).tolist())
    b.persistent = {0: {"weights": 9.0}}
    start = np.arange(ops) / 3
    return Timeline(replace(b.graph(), stands_for={1: 4}), start, start + rng.random(ops) / 3)


def assert_equal(a: Graph, b: Graph) -> None:
    for field in fields(Graph):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            np.testing.assert_array_equal(left, right, err_msg=field.name)
        else:
            assert left == right, field.name


@pytest.mark.parametrize("seed", range(3))
def test_a_whole_file_reads_back_equal(seed, tmp_path):
    timeline = some_timeline(seed)
    written = perfetto.write(timeline, tmp_path / "timeline.json.gz")
    again = perfetto.read(tmp_path / "timeline.json.gz")
    assert written == ((0, 1, 2), 80, True)
    assert_equal(timeline.graph, again.graph)
    assert (timeline.start == again.start).all()
    assert (timeline.end == again.end).all()


def test_a_part_reads_back_as_that_part(tmp_path):
    timeline = some_timeline()
    written = perfetto.write(timeline, tmp_path / "t.json.gz", ranks=[2], window=(4.0, 9.0))
    inside = (timeline.graph.rank == 2) & (timeline.end >= 4.0) & (timeline.start <= 9.0)
    ops = np.flatnonzero(inside)
    again = perfetto.read(tmp_path / "t.json.gz")
    assert written == ((2,), len(ops), False)
    assert [again.graph.op(k) for k in range(len(ops))] == [timeline.graph.op(i) for i in ops]
    assert (again.start == timeline.start[ops]).all()


def test_the_same_timeline_gives_the_same_bytes(tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        perfetto.write(some_timeline(), tmp_path / name)
    content = (tmp_path / "a.json.gz").read_bytes()
    assert content == (tmp_path / "b.json.gz").read_bytes()
    assert content[3:8] == bytes(5)  # no file name, no time stamp


def test_arrows_follow_what_let_an_op_start(tmp_path):
    """A kernel waits for the copy that ended last, not for the earlier one; a receive that came
    first gets its arrow from the send."""
    b, p2p = Builder(), Communication("p2p", 8.0, (0, 1), "pp")
    early = b.add("early", 0, "h2d", Fixed(1.0))
    late = b.add("late", 0, "d2h", Fixed(3.0))
    b.add("kernel", 0, "compute", Fixed(2.0), [early, late])
    send = b.add("send", 0, "pp", p2p, [2])
    recv = b.add("recv", 1, "pp", p2p)
    b.join([send, recv])
    start = np.array([0.0, 0.0, 3.0, 5.0, 0.0])
    timeline = Timeline(b.graph(), start, np.array([1.0, 3.0, 5.0, 6.0, 6.0]))
    perfetto.write(timeline, tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    slices = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in events if e["ph"] == "X"}
    ends = {(e["id"], e["ph"]): slices[e["pid"], e["tid"], e["ts"]] for e in events if "id" in e}
    arrows = {(ends[k, "s"], ends[k, "f"]) for k, _ in ends}
    assert arrows == {("late", "kernel"), ("kernel", "send"), ("send", "recv")}


def test_processes_are_ranks_and_the_compute_stream_comes_first(tmp_path):
    perfetto.write(some_timeline(), tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[1] == "rank 1 · stages 0, 1, 2 · stands for 4 ranks"
    threads = {
        e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 0
    }
    assert list(threads) == ["compute", "tp"]


def test_what_touches_never_overlaps_for_any_reader():
    """Perfetto multiplies microseconds by 1,000 and cuts, speedscope adds begin and duration."""
    seconds = np.cumsum(np.random.default_rng(0).integers(1, 9999, 5000)) * 1e-9
    b = Builder()
    for _ in seconds:
        b.add("op", 0, "compute", Fixed(1.0))
    timeline = Timeline(b.graph(), np.append(0.0, seconds[:-1]), seconds)
    begin, duration = stamps(timeline, np.arange(len(seconds)))
    assert (begin[:-1] + duration[:-1] <= begin[1:]).all()
    cut, length = ((1000 * of).astype(np.int64) for of in (begin, duration))
    assert cut.tolist() == np.rint(timeline.start * 1e9).astype(int).tolist()
    assert set((cut[1:] - (cut + length)[:-1]).tolist()) <= {0, 1}


def test_large_timelines_keep_the_first_middle_and_last_stage(tmp_path, monkeypatch):
    monkeypatch.setattr("traces.chrome.LIMIT", 20)
    b = Builder()
    for k in range(24):  # two replicas of four stages with two chunks each
        b.add("op", k % 8, "compute", Fixed(1.0), stage=k % 8 // 2 + 4 * (k // 8 % 2))
    start = np.arange(24.0)
    written = perfetto.write(Timeline(b.graph(), start, start + 1), tmp_path / "t.json.gz")
    assert written == ((0, 4, 6), 9, False)
    everything = perfetto.write(
        Timeline(b.graph(), start, start + 1), tmp_path / "t.json.gz", ranks=range(8)
    )
    assert everything.complete


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="rank 5 was not simulated; there are 0, 1, 2"):
        perfetto.write(some_timeline(), tmp_path / "t.json.gz", ranks=[5])
    (tmp_path / "no.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    (tmp_path / "text").write_text("no")
    for name in ("no.json.gz", "text"):
        with pytest.raises(ValueError, match=r"not a timeline\.json\.gz that traincast wrote"):
            perfetto.read(tmp_path / name)


def test_the_critical_path_is_a_track_and_each_op_tells_its_slack(tmp_path):
    """Launch 0-2 s, kernel 2-7 s, and one beside it that has 1 s left: 2-6 s."""
    b = Builder()
    call = b.add("launch", 0, "host", Fixed(2.0, "host"))
    b.add("long", 0, "compute", Fixed(5.0), [call])
    b.add("short", 1, "compute", Fixed(4.0), [call])
    timeline = Timeline(b.graph(), np.array([0.0, 2.0, 2.0]), np.array([2.0, 7.0, 6.0]))
    perfetto.write(timeline, tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    track = [(e["name"], e["ts"], e["dur"], e["args"]["name"]) for e in slices if e["pid"] == 2]
    assert track == [("launch", 0.0, 2e6, "launch"), ("compute", 2e6, 5e6, "long")]
    said = {e["name"]: e["args"] for e in slices if e["pid"] < 2}
    assert [said[name]["slack_s"] for name in ("launch", "long", "short")] == [0.0, 0.0, 1.0]
    assert [said[name].get("critical") for name in ("launch", "long", "short")] == [
        True, True, None,
    ]  # fmt: skip
    assert len(perfetto.read(tmp_path / "t.json.gz").graph) == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [("work", None), ("work", 999), ("parts", 5), ("waits", 5), ("stage", 10**30), ("args", 5),
     ("pid", 10**20), ("start_s", "now"), ("phase", "?"), ("memory", [["a"]])],
)  # fmt: skip
def test_ops_changed_by_hand_are_refused(key, value, tmp_path):
    path = tmp_path / "timeline.json.gz"
    perfetto.write(some_timeline(), path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    slices = [e for e in content["traceEvents"] if e["ph"] == "X" and "op" in e["args"]]
    of = slices[1] if key in ("args", "pid") else slices[1]["args"]
    of[key] = value
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(ValueError, match="has been changed since traincast wrote it"):
        perfetto.read(path)
    slices[1]["args"] = slices[0]["args"] | {"start_s": 5.0, "end_s": 4.0}
    slices[1]["pid"] = 0
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(ValueError, match="an op whose end_s is before its start_s"):
        perfetto.read(path)
