"""Nsight Systems exports: synthetic databases with the documented tables."""

from __future__ import annotations

import sqlite3
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from schedules.input_error import InputError
from sim.analysis.path import by_cause, path
from traces.reading import read
from traces.recording import Selection
from traces.replay import replays

pytestmark = pytest.mark.slow

TIMES = "start INT, end INT"
GPU = f"{TIMES}, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{GPU}, demangledName INT, shortName INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{GPU}, bytes INT, copyKind INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{TIMES}, globalTid INT, correlationId INT, nameId INT",
    "NVTX_EVENTS": f"{TIMES}, eventType INT, text TEXT, globalTid INT, textId INT",
}
NAMES = ["gemm", "void gemm<float>(int)", "ncclDevKernel_AllReduce_Sum", "cudaLaunchKernel",
         "cudaMemcpyAsync", "ProfilerStep#1"]  # fmt: skip
PID = 7 << 24


def launch(start: int, end: int, correlation: int, name: int = 3) -> tuple[Any, ...]:
    return (start, end, PID + 42, correlation, name)


def report(path: Path, late: int = 0, clock: int = 0) -> Path:
    """Two steps; times in us. The all-reduce begins when all are there, its clock is shifted."""
    rows: dict[str, list[tuple[Any, ...]]] = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            launch(0, 10, 1), launch(12, 20, 2), launch(22, 40, 3, 4), launch(100, 110, 4),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (15, 65 + late, 0, 1, 7, 1, PID, 1, 0),
            (65 + late, 90, 0, 1, 7, 2, PID, 2, 2),
            (105, 155, 0, 1, 7, 4, PID, 1, 0),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(35, 60, 0, 1, 8, 3, PID, 4096, 1)],
        "NVTX_EVENTS": [(0, 50, 59, None, PID + 42, 5), (95, 120, 59, "step 2", PID + 42, None)],
    }  # fmt: skip
    with sqlite3.connect(path) as database:
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*enumerate(NAMES)])
        for name, some in rows.items():
            shifted = [(1000 * (a + clock), 1000 * (b + clock), *rest) for a, b, *rest in some]
            marks = ", ".join("?" * len(some[0]))
            database.executemany(f"INSERT INTO {name} VALUES ({marks})", shifted)
    database.close()
    return path


def changed(path: Path, *statements: str) -> Path:
    """The report after these changes."""
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()
    return path


def test_one_report(tmp_path: Path) -> None:
    """Calls last until what they launched began: the copy's call from 22 to 35 us."""
    recording = read([report(tmp_path / "r.sqlite")])
    frame = recording.timeline.to_pandas()
    micro = frame.assign(start=(frame.start * 1e6).round(3), end=(frame.end * 1e6).round(3))
    assert micro[["name", "stream", "kind", "start", "end"]].to_numpy().tolist() == [
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 0, 10],
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 12, 20],
        ["gemm", "stream 7", "gemm", 15, 65],
        ["cudaMemcpyAsync", f"host {PID + 42}", "host", 22, 35],
        ["Memcpy HtoD", "stream 8", "copy", 35, 60],
        ["ncclDevKernel_AllReduce_Sum", "stream 7", "communication", 65, 90],
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 100, 105],
        ["gemm", "stream 7", "gemm", 105, 155],
    ]
    graph = recording.timeline.graph
    assert [graph.waits(i).tolist() for i in (2, 4, 5, 7)] == [[0], [3], [1], [6]]
    assert recording.counts == {
        "gpu_ops": 4, "gpu_ops_linked": 4, "collectives": 1, "collectives_matched": 0,
    }  # fmt: skip
    assert recording.warnings == (
        "nsys does not say which stream waited for which, so no waits between streams were read",
    )


def test_it_replays(tmp_path: Path) -> None:
    """Anchored as it was; without a host the kernels of 50, 25 and 50 us run back to back."""
    recording = read([report(tmp_path / "r.sqlite")])
    anchored = replays.replay(recording)
    assert anchored.hosts == "anchored"
    assert anchored.end_errors().max() < 1e-12
    without = replays.replay(recording, "none")
    assert [float(of[0]) for of in without.steps()] == pytest.approx([140e-6, 125e-6])
    assert len(without.end_errors()) == 4  # ends of what ran on the GPU


def test_steps_are_nvtx_ranges(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    second = read([path], Selection(step=2))
    assert second.timeline.to_pandas()["name"].tolist() == ["cudaLaunchKernel", "gemm"]
    assert second.steps == (2,)
    assert len(read([path], Selection(step=1)).timeline.graph) == 6
    with pytest.raises(ValueError, match=r"no NVTX range for step 3 .*; there are 1, 2"):
        read([path], Selection(step=3))


def test_collectives_and_clocks_of_two_reports(tmp_path: Path) -> None:
    """One rank is 20 us late and its clock is 5,000 us ahead: the all-reduce takes 5 us."""
    paths = [report(tmp_path / "0.sqlite"), report(tmp_path / "1.sqlite", late=20, clock=5000)]
    recording = read(paths)
    graph = recording.timeline.graph
    assert graph.ranks().tolist() == [0, 1]
    assert recording.counts["collectives_matched"] == 1
    assert recording.clock_offsets == pytest.approx({0: 0.0, 1: -0.005})
    members = [i for i in range(len(graph)) if len(graph.parts(i))]
    assert recording.timeline.end[members] == pytest.approx([90e-6, 90e-6])
    assert graph.works[graph.part_work[0]].seconds == pytest.approx(5e-6)
    assert replays.replay(recording).end_errors().max() < 1e-9
    assert read(paths, Selection(ranks=[1])).counts == {
        "gpu_ops": 4, "gpu_ops_linked": 4, "collectives": 1, "collectives_matched": 0,
    }  # fmt: skip


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    changed(path, "CREATE TABLE a (b INT)")
    with pytest.raises(ValueError, match="holds no kernels or copies; profile with nsys"):
        read([path])
    changed(path, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (b INT)")
    with pytest.raises(ValueError, match="is not a report that nsys exported"):
        read([path])


@pytest.mark.parametrize(("column", "value"), [("start", None), ("end", "'late'")])
def test_rows_without_numbers_are_refused(column: str, value: str | None, tmp_path: Path) -> None:
    path = report(tmp_path / "x.sqlite")
    changed(path, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = {value or 'NULL'}")
    with pytest.raises(ValueError, match="kernels or copies without a start, an end or a device"):
        read([path])


SYNC = f"{TIMES}, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, " \
       "syncType INT, eventId INT"  # fmt: skip
RECORD = "deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, eventId INT"
CALLED = [*NAMES, "cudaDeviceSynchronize_v3020", "cudaStreamSynchronize_v3020",
          "cudaEventSynchronize_v3020", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020",
          "long", "short"]  # fmt: skip
NONE = 0xFFFFFFFF


def waiting(
    path: Path, call: int, type_: int, stream: int = NONE, event: int = NONE, recorded: bool = True
) -> Path:
    """Kernels "long", of stream 13, from 20 to 920 us, and "short", of stream 7, from 30 to 80,
    launched at 0 and 10; an event recorded on stream 13 at 6, and a call from 100 to 930."""
    rows: dict[str, list[tuple[Any, ...]]] = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            launch(0, 5, 1), launch(6, 7, 2, 9), launch(10, 15, 3), launch(100, 930, 4, call),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (20, 920, 0, 1, 13, 1, PID, 11, 11), (30, 80, 0, 1, 7, 3, PID, 12, 12),
        ],
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": [
            (101, 929, 0, 1, stream, 4, PID, type_, event),
        ],
    }  # fmt: skip
    tables = {**TABLES, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": SYNC}
    with sqlite3.connect(path) as database:
        for name, columns in tables.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*enumerate(CALLED)])
        for name, some in rows.items():
            for a, b, *rest in some:
                marks = ", ".join("?" * (2 + len(rest)))
                database.execute(
                    f"INSERT INTO {name} VALUES ({marks})", (1000 * a, 1000 * b, *rest)
                )
        if recorded:
            database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_CUDA_EVENT ({RECORD})")
            database.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_CUDA_EVENT VALUES (0, 1, 13, 2, ?, 5)", (PID,)
            )
    database.close()
    return path


def needs(path: Path) -> dict[str, tuple[float, float, list[str]]]:
    """Begin and end in us, and what it waits for, of each op by name (of two the later)."""
    timeline = read([path]).timeline
    graph = timeline.graph
    names = [graph.op(i).name for i in range(len(graph))]
    return {
        name: (
            round(float(timeline.start[i]) * 1e6, 3), round(float(timeline.end[i]) * 1e6, 3),
            sorted(names[k] for k in graph.waits(i).tolist()),
        )
        for i, name in enumerate(names)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("call", "type_", "where", "waits"),
    [
        (6, 4, {}, ["long", "short"]),
        (7, 3, {"stream": 13}, ["long"]),
        (8, 1, {"event": 5}, ["long"]),
        (8, 1, {"event": 5, "recorded": False}, ["long"]),  # the op that ended last before it
    ],
)
def test_a_synchronising_call_ends_when_what_it_waits_for_does(
    tmp_path: Path, call: int, type_: int, where: dict[str, Any], waits: list[str]
) -> None:
    found = needs(waiting(tmp_path / "r.sqlite", call, type_, **where))
    assert found[CALLED[call]] == (920, 930, waits)


def test_the_path_runs_through_what_a_call_waited_for(tmp_path: Path) -> None:
    recording = read([waiting(tmp_path / "r.sqlite", 7, 3, stream=13)])
    causes = by_cause(path(recording.timeline), stragglers=False)
    assert causes["compute"] == pytest.approx(900e-6)
    assert causes["launch"] == pytest.approx(30e-6)


@pytest.mark.parametrize("recorded", [True, False])
def test_streams_wait_for_events_whose_records_are_there(tmp_path: Path, recorded: bool) -> None:
    """A kernel of stream 7 that is launched behind the wait comes when stream 13 is done."""
    path = waiting(tmp_path / "r.sqlite", 10, 2, stream=7, event=5, recorded=recorded)
    call = f"CUPTI_ACTIVITY_KIND_RUNTIME VALUES (940000, 945000, {PID + 42}, 9, 3)"
    kernel = f"CUPTI_ACTIVITY_KIND_KERNEL VALUES (950000, 960000, 0, 1, 7, 9, {PID}, 0, 0)"
    changed(path, f"INSERT INTO {call}", f"INSERT INTO {kernel}")
    waits = ["cudaLaunchKernel", *(["long"] if recorded else [])]
    assert needs(path)["gemm"] == (950, 960, waits)
    assert any("does not say" in one for one in read([path]).warnings) is not recorded


def test_a_blocking_copy_waits_for_its_stream(tmp_path: Path) -> None:
    """It was called at 100 and copied from 921 to 925: launched in 5 us, then a wait."""
    path = waiting(tmp_path / "r.sqlite", 4, 0)
    copy = f"CUPTI_ACTIVITY_KIND_MEMCPY VALUES (921000, 925000, 0, 1, 13, 4, {PID}, 4096, 2)"
    changed(path, f"INSERT INTO {copy}")
    found = needs(path)
    assert found["cudaMemcpyAsync"] == (100, 105, [])
    assert found["cudaMemcpyAsync (wait)"] == (925, 930, ["Memcpy DtoH"])


def test_a_report_of_kernels_alone(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    changed(path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    assert read([path]).counts["gpu_ops_linked"] == 0


def test_the_case_of_three_kernels_that_the_host_waits_for(shared: Path) -> None:
    recording = read([shared.parent / "cases/traces/5_nsys_sync.sqlite"])
    causes = by_cause(path(recording.timeline), stragglers=False)
    assert causes["compute gemm"] == pytest.approx(30e-3)
    before = replays.replay(recording, what_if=None).steps()[1].sum()
    after = replays.replay(recording, what_if="compute * 0.5").steps()[1].sum()
    assert after / before == pytest.approx(0.5, abs=0.001)


MISSING = [
    *product(["RUNTIME"], ["start", "end", "globalTid", "correlationId", "nameId"]),
    *product(["KERNEL"], ["streamId", "correlationId", "globalPid", "shortName"]),
]


@pytest.mark.parametrize(("of", "column"), MISSING)
@pytest.mark.parametrize("value", ["NULL", "'x'", "-5"])
def test_calls_and_kernels_of_which_something_is_missing(
    tmp_path: Path, of: str, column: str, value: str
) -> None:
    """Calls are left out, or launched nothing; what ran on the GPU is all there."""
    path = report(tmp_path / "x.sqlite")
    changed(path, f"UPDATE CUPTI_ACTIVITY_KIND_{of} SET {column} = {value}")
    assert read([path]).counts["gpu_ops"] == 4


@pytest.mark.parametrize("column", ["start", "syncType", "streamId", "eventId", "correlationId"])
@pytest.mark.parametrize("value", ["NULL", "'x'", "-5"])
def test_synchronisations_of_which_something_is_missing(
    tmp_path: Path, column: str, value: str
) -> None:
    """Then launches and ends tell what was waited for."""
    path = waiting(tmp_path / "x.sqlite", 7, 3, stream=13)
    changed(path, f"UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET {column} = {value}")
    found = needs(path)[CALLED[7]]
    assert found[:2] == (920, 930)
    assert "long" in found[2]


def test_durations_below_0_are_nothing(tmp_path: Path) -> None:
    path = report(tmp_path / "x.sqlite")
    changed(path, "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = start - 5000")
    recording = read([path])
    assert (recording.timeline.end >= recording.timeline.start).all()
    assert recording.warnings[0] == "1 event with a duration below 0 taken to last no time"


@pytest.mark.parametrize("value", ["x'00ff'", "1e308", str(2**62)])
@pytest.mark.parametrize(
    ("table", "column", "read_"),
    [
        ("StringIds", "value", True), ("NVTX_EVENTS", "text", True), ("NVTX_EVENTS", "start", True),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", True), ("CUPTI_ACTIVITY_KIND_MEMCPY", "end", False),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId", False),
    ],
)  # fmt: skip
def test_entries_of_another_type_are_empty(
    table: str, column: str, read_: bool, value: str, tmp_path: Path
) -> None:
    """Without its begin, end or device an op of a GPU cannot be read, and nothing of its report."""
    path = report(tmp_path / "x.sqlite")
    changed(path, f"UPDATE {table} SET {column} = {value}")
    if read_:
        assert read([path]).counts["gpu_ops"] == 4
        return
    with pytest.raises(InputError, match="without a start, an end or a device"):
        read([path])


def test_full_names_say_what_short_ones_do_not(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    full = "void deep_ep::internode::dispatch<true>(int)"
    changed(
        path,
        "UPDATE StringIds SET value = 'dispatch' WHERE value = 'gemm'",
        f"UPDATE StringIds SET value = '{full}' WHERE value LIKE 'void gemm%'",
    )
    graph = read([path]).timeline.graph
    works = [graph.op(i).work for i in range(len(graph)) if graph.op(i).name == "dispatch"]
    assert [(of.kind, of.dimension) for of in works] == [("communication", "ep")] * 2
