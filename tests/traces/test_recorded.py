"""Files of the recorder: orders, times and messages of real pipeline runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import schedules
from sim.timeline import Timeline
from traces import schedule_csv
from traces.own import read as perfetto_read
from traces.reading import read
from traces.recorded import run as recorded_run
from traces.recording import Selection
from traces.replay import replays

FILES = (
    "v4k_1F1B_P4_M8", "v4k_GPipe_P4_M8", "v4k_ZBVZeroBubble_P4_M8", "v4k_Interleaved1F1B_P4_M8",
    "v4k_InterleavedZeroBubble_P4_M8", "v4k_LoopedBFS_P4_M8", "v4k_DualPipeV_P4_M8",
)  # fmt: skip


def event(cat: str, name: str, rank: int, start: float, end: float, **args: Any) -> dict[str, Any]:
    times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": 0, **times, "args": args}


def step(at: float, number: int) -> list[dict[str, Any]]:
    """F = 5 and B = 7 s on two ranks; messages take 0.5 s; each call of the host 0.25 s."""
    of = {"step": number}
    some = [
        event("compute", "0F0", 0, 0, 5, **of),
        event("comm_post", "isend", 0, 5.25, 5.5, ops=[["isend", 1, 64]], **of),
        event("comm_post", "irecv", 0, 5.5, 5.75, ops=[["irecv", 1, 64]], **of),
        event("comm_wait", "wait", 0, 5.75, 18.75, n=1, **of),
        event("compute", "0B0", 0, 18.75, 25.75, **of),
        event("comm_post", "irecv", 1, 0, 0.25, ops=[["irecv", 0, 64]], **of),
        event("comm_wait", "wait", 1, 0.25, 5.75, n=1, **of),
        event("compute", "1F0", 1, 5.75, 10.75, **of),
        event("compute", "1B0", 1, 10.75, 17.75, **of),
        event("comm_post", "isend", 1, 18.25, 18.5, ops=[["isend", 0, 64]], **of),
    ]
    return [one | {"ts": one["ts"] + at * 1e6} for one in some]


def written(events: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "run.json.gz"
    content = {"schemaVersion": 1, "otherData": {"cfg": {"world": 2}}, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def ops(timeline: Timeline) -> list[tuple[str, int, float, float]]:
    frame = timeline.to_pandas()
    return [*zip(frame["name"], frame["rank"], frame["start"], frame["end"], strict=True)]


def test_a_run_by_hand(tmp_path: Path) -> None:
    recording = read([written([*step(0, 3), *step(30, 4)], tmp_path)])
    assert (recording.format, recording.steps) == ("recorded", (3, 4))
    assert ops(recording.timeline)[:8] == [
        ("0F0", 0, 0, 5), ("recv 0F0", 1, 0, 5.75), ("send 0F0", 0, 5.25, 5.75),
        ("recv 1B0", 0, 5.5, 18.75), ("1F0", 1, 5.75, 10.75), ("1B0", 1, 10.75, 17.75),
        ("send 1B0", 1, 18.25, 18.75), ("0B0", 0, 18.75, 25.75),
    ]  # fmt: skip
    graph = recording.timeline.graph
    assert [graph.waits(i).tolist() for i in range(8)] == [[], [], [0], [0], [1], [], [5], [3]]
    assert graph.op(7)[4:7] == ("B", 0, 0)
    assert graph.op(2).stream == "pp send →1"
    assert [graph.works[k].seconds for k in graph.part_work] == [0.5] * 4
    assert recording.counts == {"gpu_ops": 16, "collectives": 4, "collectives_matched": 4}
    alone = read(recording.files, Selection(ranks=[0])).counts
    assert alone == {"gpu_ops": 8, "collectives": 4, "collectives_matched": 0}


def test_replays_by_hand(tmp_path: Path) -> None:
    """The host took 0.25 s before the first message and 0.5 s before the second."""
    path = written([*step(0, 3), *step(30, 4)], tmp_path)
    for hosts, seconds in (("anchored", 25.75), ("modelled", 25.75), ("none", 25.0)):
        assert replays.replay(read([path]), hosts).steps()[1] == pytest.approx([seconds] * 2)
    one = read([path], Selection(step=4))
    assert ops(one.timeline)[0] == ("0F0", 0, 30, 35)


def test_a_message_that_nobody_waited_for_took_the_usual_time(tmp_path: Path) -> None:
    """The second forward's input came while the first ran: how long it took, nobody saw."""
    of = {"step": 0}
    late = [
        event("compute", "0F1", 0, 5.5, 9, **of),
        event("comm_post", "isend", 0, 9, 9.25, ops=[["isend", 1, 64]], **of),
        event("comm_post", "irecv", 1, 5.5, 5.625, ops=[["irecv", 0, 64]], **of),
        event("comm_wait", "wait", 1, 10.75, 10.76, n=1, **of),
        event("compute", "1F1", 1, 10.76, 15, **of),
    ]
    events = [one for one in step(0, 0) if "B0" not in one["name"] and one["ts"] < 5.75e6
              and not (one["pid"] == 0 and one["name"] == "irecv")]  # fmt: skip
    events.append(event("compute", "1F0", 1, 5.75, 10.75, **of))
    recording = read([written(events + late, tmp_path)])
    by_name = {name: (start, end) for name, _, start, end in ops(recording.timeline)}
    assert by_name["recv 0F0"] == (0, 5.75)
    assert by_name["recv 0F1"] == (5.5, 9.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda events: [e for e in events if e["name"] != "irecv"], "which posted 0 receives"),
        (lambda events: [e for e in events if e["cat"] != "compute"], "holds no computes"),
        (lambda events: [e | {"args": {}} for e in events], "event 0, args: step is missing"),
        (lambda events: [e | {"name": "0X0"} for e in events],
         "is called '0X0'; names are such as"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read([written(change(step(0, 0)), tmp_path)])


@pytest.mark.parametrize("reader", [recorded_run.read, perfetto_read.read])
@pytest.mark.parametrize("at", [10, -8])
def test_broken_gzip_is_refused(reader: Callable[[Path], Any], at: int, tmp_path: Path) -> None:
    """A bad block type, of which zlib complains, and a bad checksum, of which gzip does."""
    path = tmp_path / "broken.json.gz"
    text = bytearray(gzip.compress(b'{"otherData": {"cfg": {}}, "traceEvents": []}'))
    text[at] ^= 0xFF
    path.write_bytes(text)
    with pytest.raises(ValueError, match="wrote"):
        reader(path)
    with pytest.raises(ValueError, match="is not a trace that"):
        read([path])


@pytest.mark.parametrize("name", FILES)
def test_real_runs(name: str, shared: Path) -> None:
    """Orders are those that torch was given, steps take what they took, and replays repeat them.

    The hosts' gaps, of which each step's are learnt from one or two others, explain a step to 1.5 %
    but where blocks of two computes send at the block's end (DualPipeV).
    """
    path = shared / "recorded/chrome" / f"{name}.json.gz"
    recording = read([path])
    timeline, graph = recording.timeline, recording.timeline.graph
    schedule, ranks, microbatches = name.removeprefix("v4k_").split("_")
    golden = shared / "orders/torch"
    chunks = 1 if schedule in ("1F1B", "GPipe") else 2
    file = "1F1B-executed" if schedule == "1F1B" else schedule
    text = (golden / f"{file}_{ranks}_{microbatches}_v{chunks}.compute.csv").read_text()
    plan = schedules.flat(schedule_csv.read(text))
    for rank, steps in enumerate(plan):
        mine = timeline.on(rank, "compute")
        mine = mine[graph.step[mine] == 1]
        assert [graph.op(i).name for i in mine] == [str(step) for step in steps]
    with gzip.open(path) as content:
        measured = json.load(content)["otherData"]["step_ms_all"][:3]
    exact = replays.replay(recording, "anchored")
    recorded, replayed = exact.steps()
    assert recorded * 1e3 == pytest.approx(measured, rel=0.005)
    assert replayed == pytest.approx(recorded, rel=1e-6)
    assert exact.end_errors().max() < 1e-5
    without = replays.replay(recording, "none").steps()[1] / recorded - 1
    assert (without > -0.09).all()
    assert (without < 0).all()
    modelled = np.abs(replays.replay(recording, "modelled").steps()[1] / recorded - 1)
    assert modelled.max() < (0.06 if schedule == "DualPipeV" else 0.015)
