"""The rows of one rank's file that are read: ops of the GPU, calls, annotations and operators.

Times are whole nanoseconds: since 1970 (``baseTimeNanoseconds`` is added), or on the file's own
clock if it has another.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim.graph import Bools, Longs
from traces.kineto.message import CommunicationRecord


class GpuOp(NamedTuple):
    """A kernel, copy or memset."""

    name: str
    kind: str
    start: int
    end: int
    device: int
    stream: int
    correlation: int  # that of the call that launched it; -1: unknown
    message: CommunicationRecord | None
    blocks: int = 0  # those of a communication kernel, each on an SM; 0: unknown
    dimension: str = ""  # whose traffic a communication is, by its name; "" if unknown


class RuntimeCall(NamedTuple):
    """A call of CUDA or HIP on the host."""

    name: str
    thread: int
    start: int
    end: int
    correlation: int


class Sync(NamedTuple):
    """What a ``cuda_sync`` event tells about the call of the same correlation."""

    kind: str  # "Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync"
    stream: int  # the one that waits; -1: the host waits
    on_stream: int  # the one that is waited for; -1: unknown, or all
    on_call: int  # correlation of the cudaEventRecord; -1: unknown
    correlation: int
    start: int


class Annotation(NamedTuple):
    """An annotation on the host."""

    name: str
    thread: int
    start: int
    end: int


class Posted(NamedTuple):
    """A collective on the host (``record_param_comms``): posted, or waited for."""

    thread: int
    start: int
    end: int
    message: CommunicationRecord


class Operators:
    """Operators and calls on the host: columns with a row each, as there are millions of them."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.thread, self.start, self.end, self.name = (array("q") for _ in range(4))

    def add(self, name: str, thread: int, start: int, end: int) -> None:
        """Add a row; times in nanoseconds."""
        self.name.append(self.names.setdefault(name, len(self.names)))
        self.thread.append(thread)
        self.start.append(start)
        self.end.append(end)

    def once(self) -> int:
        """Leave out rows that are already there, and return how many they were."""
        columns = [self.name, self.thread, self.start, self.end]
        rows = np.array([np.frombuffer(column, np.int64) for column in columns])
        first = np.sort(np.unique(rows, axis=1, return_index=True)[1])
        lost = len(self.start) - len(first)
        if lost:
            self.name, self.thread, self.start, self.end = (
                array("q", column.tobytes()) for column in rows[:, first]
            )
        return lost

    def spans(self) -> tuple[Longs, Longs]:
        """Return begins and ends, (N,) arrays of nanoseconds."""
        return np.array(self.start, np.int64), np.array(self.end, np.int64)

    def chosen(self, rows: Bools) -> Operators:
        """Return some of the rows."""
        out = Operators()
        out.names = self.names
        for key in ("name", "thread", "start", "end"):
            column = np.array(getattr(self, key), np.int64)[rows]
            setattr(out, key, array("q", column.tobytes()))
        return out

    def of(self, threads: Collection[int]) -> Operators:
        """Return the rows of some threads."""
        return self.chosen(np.isin(np.array(self.thread, np.int64), [*threads]))

    def ending(self, end: Longs) -> Operators:
        """Return the rows with other ends."""
        out = self.chosen(np.ones(len(end), np.bool_))
        out.end = array("q", end.tobytes())
        return out

    def shift(self, by: int) -> None:
        """Move all rows by some nanoseconds."""
        for column in ("start", "end"):
            moved = np.array(getattr(self, column), np.int64) + by
            setattr(self, column, array("q", moved.tobytes()))


@dataclass
class RankRows:
    """Everything of one file that a recording needs, in the file's order until sorted."""

    path: Path
    rank: int = -1  # -1: neither the file nor its name tells
    world_size: int = 0
    sms: int = 0  # how many a GPU has; 0: unknown
    gpu: list[GpuOp] = field(default_factory=list)
    calls: list[RuntimeCall] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    marks: list[Annotation] = field(default_factory=list)
    posted: list[Posted] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # process group -> ranks
    operators: Operators = field(default_factory=Operators)
    processes: dict[int, int] = field(default_factory=dict)  # host thread -> its process
    unread: dict[str, int] = field(default_factory=dict)  # unknown category -> number of events
    warnings: list[str] = field(default_factory=list)
