"""How all recorders measure: rows of work, timed alike; steps after a warm-up; parts that may fail.

A recorder says what it measures as rows, and the steps or parts that it runs; how often each is
repeated, when time is up, and what is said of one that fails is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from traces.record.sweep_time import LEAST_RUNS, Run, seconds
from traces.record.workers import Here, Task

T = TypeVar("T")


class Row(NamedTuple):
    """One thing to measure: facts that name it, its work, and how often that runs."""

    facts: Mapping[str, Any]
    run: Run
    most: int = 20
    least: int = LEAST_RUNS
    repeat: int | None = None  # runs in a row, if the ranks have to agree on them
    shares: int = 1  # the parts of a run, of which the seconds of one are written
    joined: bool = False  # measured in any case, as the rows before are worth nothing without it


def measured(here: Here, rows: Iterable[Row], until: float) -> Iterator[dict[str, Any]]:
    """Yield facts and seconds of the rows that begin before ``until``, on the monotonic clock."""
    for row in rows:
        if not row.joined and time.monotonic() > until:
            return
        took = seconds(here, row.run, until, row.most, row.least, row.repeat)
        yield {**row.facts, **{k: v / row.shares if k[0] == "s" else v for k, v in took.items()}}


def steps(
    task: Task, here: Here, one: Callable[[], T], begin: Callable[[], object] = lambda: None
) -> list[T]:
    """Return what ``one`` says of each measured step, all ranks beginning it together.

    ``begin`` is called when the task's warm-up steps are over.
    """
    out = []
    for number in range(task["warm"] + task["steps"]):
        if here.ranks > 1:
            import torch.distributed as dist

            dist.barrier()
        if number == task["warm"]:
            begin()
        found = one()
        if number >= task["warm"]:
            out.append(found)
    return out


@contextmanager
def guarded(skipped: dict[str, str], name: str) -> Iterator[None]:
    """Let a part fail without harm to the others, which are worth having; say why it did."""
    try:
        yield
    except Exception as error:
        skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
