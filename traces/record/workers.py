"""Starts the processes that record, one per rank, waits for them, and leaves none behind.

A job is a list of tasks, each a dictionary whose ``task`` is the name of a module of this package
with a function ``work(task, here) -> data``. Loading torch takes longer than a short recording, so
one start serves several tasks.
"""

from __future__ import annotations

import json
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

Task = dict[str, Any]
Progress = Callable[[str], None]


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
) -> list[list[Any]]:
    """Run tasks; return, per task, what each rank returned. ``folder`` takes files of tasks.

    With ``fake`` each worker believes that it is one of so many, and nothing is sent.

    Raises InputError with the last line that a worker printed, when one failed or ``timeout``
    seconds have passed: a task has the results of all ranks, or an error.
    """
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
            _await(workers, here, timeout)
        finally:
            _end(workers)
        return [
            [json.loads((here / f"{at}.{rank}.json").read_text()) for rank in range(ranks)]
            for at in range(len(tasks))
        ]


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


def _await(workers: Sequence[subprocess.Popen[bytes]], here: Path, timeout: float) -> None:
    """Return when all have ended well; raise when one has not, or not in time."""
    deadline = time.monotonic() + timeout
    while any(worker.poll() is None for worker in workers):
        failed = [rank for rank, worker in enumerate(workers) if worker.poll()]
        if failed:
            break
        if time.monotonic() > deadline:
            raise InputError(f"recording was not done after {timeout:.0f} s; give it more time")
        time.sleep(0.05)
    for rank, worker in enumerate(workers):
        if worker.poll():
            raise InputError(f"rank {rank} failed while recording: {_last(here, rank)}")


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
