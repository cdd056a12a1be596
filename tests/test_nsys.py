"""Nsight Systems exports: synthetic databases with the documented tables."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from traces import replays
from traces.reading import read
from traces.recording import Selection

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


def test_one_report(tmp_path: Path) -> None:
    """Calls last until what they launched began: the copy's call from 22 to 35 us."""
    recording = read([report(tmp_path / "r.sqlite")])
    frame = recording.timeline.to_pandas()
    micro = frame.assign(start=(frame.start * 1e6).round(3), end=(frame.end * 1e6).round(3))
    assert micro[["name", "stream", "kind", "start", "end"]].to_numpy().tolist() == [
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 0, 10],
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 12, 20],
        ["gemm", "stream 7", "compute", 15, 65],
        ["cudaMemcpyAsync", f"host {PID + 42}", "host", 22, 35],
        ["Memcpy HtoD", "stream 8", "copy", 35, 60],
        ["ncclDevKernel_AllReduce_Sum", "stream 7", "communication", 65, 90],
        ["cudaLaunchKernel", f"host {PID + 42}", "host", 100, 105],
        ["gemm", "stream 7", "compute", 105, 155],
    ]
    graph = recording.timeline.graph
    assert [graph.waits(i).tolist() for i in (2, 4, 5, 7)] == [[0], [3], [1], [6]]
    assert recording.counts == {
        "gpu_ops": 4, "gpu_ops_linked": 4, "collectives": 1, "collectives_matched": 0,
    }  # fmt: skip
    assert recording.warnings == (
        "nsys does not say which stream waited for which; no waits between streams were read",
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
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE a (b INT)")
    database.close()
    with pytest.raises(ValueError, match="holds no kernels or copies; profile with nsys"):
        read([path])
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (b INT)")
    database.close()
    with pytest.raises(ValueError, match="is not a report that nsys exported"):
        read([path])


@pytest.mark.parametrize(("column", "value"), [("start", None), ("end", "'late'")])
def test_rows_without_numbers_are_refused(column: str, value: str | None, tmp_path: Path) -> None:
    path = report(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as database:
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = {value or 'NULL'}")
    database.close()
    with pytest.raises(ValueError, match="kernels or copies without a start, an end or a device"):
        read([path])
