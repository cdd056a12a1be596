"""Starts the processes that record, one per rank, waits for them, and leaves none behind.

A job is a list of tasks, each a dictionary whose ``task`` is the name of a module of this package
with a function ``work(task, here) -> data``. Loading torch takes longer than a short recording, so
one start serves several tasks.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError

ROOT = Path(__file__).parents[2]

MOST = 256
"""Processes that one machine is asked to record with: each loads torch."""

Task = dict[str, Any]
Each = Callable[[int, list[Any]], object]
"""A function of a task's number and what each rank returned for it."""


class Here(NamedTuple):
    """Where a worker is: its rank among how many, and what its tensors live on."""

    rank: int
    ranks: int
    device: str  # "cpu" or "cuda:0"
    folder: Path  # for files that go with the results


def run(
    tasks: Sequence[Task],
    ranks: int,
    timeout: float,
    folder: Path | None = None,
    device: str = "auto",
    fifo: bool = False,
    fake: int = 0,
    each: Each | None = None,
) -> list[list[Any]]:
    """Run tasks; return, per task, what each rank returned. ``folder`` takes files of tasks.

    With ``fake`` each worker believes that it is one of so many, and nothing is sent. ``each`` is
    called with a task's results as soon as all ranks have them.

    Raises InputError with the last line that a worker printed, when one failed or ``timeout``
    seconds have passed: a task has the results of all ranks, or an error. Raises it before anything
    starts for more than 256 ranks, and for a ``timeout`` that never or at once ends.
    """
    if ranks > MOST:
        raise InputError(f"{ranks} processes are too many for one machine; give at most {MOST}")
    if not 0.0 < timeout < math.inf:
        raise InputError(f"a timeout of {timeout} s is no time to wait; give a positive number")
    with tempfile.TemporaryDirectory(prefix="traincast-record-") as name:
        here = Path(name)
        job = {
            "tasks": list(tasks), "ranks": ranks, "device": device, "fifo": fifo,
            "fake": fake,
            "parent": os.getpid(), "folder": str(folder or here),
        }  # fmt: skip
        (here / "job.json").write_text(json.dumps(job))
        workers = list[subprocess.Popen[bytes]]()
        try:
            workers.extend(_start(here, rank) for rank in range(ranks))
            results = _await(workers, here, timeout, len(tasks), each)
        finally:
            _end(workers)
        return results


def environment() -> dict[str, str]:
    """Return the environment of a process that records: this package, one core, all queues."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # 8 hardware queues would put streams behind another
    }


def _start(here: Path, rank: int) -> subprocess.Popen[bytes]:
    with (here / f"said.{rank}").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "traces.record.worker", str(here), str(rank)],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment(),
        )  # fmt: skip


def _await(
    workers: Sequence[subprocess.Popen[bytes]], here: Path, timeout: float, tasks: int,
    each: Each | None,
) -> list[list[Any]]:  # fmt: skip
    """Return the results when all have ended well; raise when one has not, or not in time."""
    deadline, ranks = time.monotonic() + timeout, len(workers)
    results: list[list[Any]] = []
    while any(worker.poll() is None for worker in workers):
        _collect(results, here, tasks, ranks, each)
        failed = [rank for rank, worker in enumerate(workers) if worker.poll()]
        if failed:
            break
        if time.monotonic() > deadline:
            raise InputError(f"recording was not done after {timeout:.0f} s; give it more time")
        time.sleep(0.05)
    for rank, worker in enumerate(workers):
        if worker.poll():
            raise InputError(f"rank {rank} failed while recording: {_last(here, rank)}")
    _collect(results, here, tasks, ranks, each)
    return results


def _collect(
    results: list[list[Any]], here: Path, tasks: int, ranks: int, each: Each | None
) -> None:
    """Add the results of tasks that all ranks have done since."""
    while len(results) < tasks:
        files = [here / f"{len(results)}.{rank}.json" for rank in range(ranks)]
        if not all(file.exists() for file in files):
            return
        results.append([json.loads(file.read_text()) for file in files])
        if each:
            each(len(results) - 1, results[-1])


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill those that still run; one that a driver holds is not waited for."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(10.0)


def _last(here: Path, rank: int) -> str:
    lines = (here / f"said.{rank}").read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")
