"""Draws one step: what each rank computed and moved, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.graph import Builder, Communication, Fixed
from sim.timeline import Timeline
from traces.cpu_steps.measure import moved, owns
from traces.cpu_steps.run import CpuRun
from traces.cpu_steps.steps import Part

_DIMENSIONS = {"tp": "tp", "ring": "cp", "moe": "ep"}  # of modes; others are data parallel
_PHASES = {"forward": "F", "backward": "B", "optimizer": "O"}


class OperatorRow(NamedTuple):
    """One operator, or one collective, of one rank; nanoseconds from the step's begin."""

    rank: int
    stream: str  # cpu, or gloo 0, 1, ..., as many as were under way at once
    name: str
    inside: str  # as in Leaf; "" for a collective
    start: int
    end: int
    bytes: float  # of a collective
    number: int  # of a collective, in its step; else -1


def rows(parts: Sequence[Part]) -> Iterator[OperatorRow]:
    """Yield all rows of a step. An operator's row lasts from its first own second to its last."""
    for part in parts:
        until = 0.0
        for own in owns(part):
            if own.end > until:
                begin, until = max(own.start, until), own.end
                yield OperatorRow(
                    part.rank, "cpu", own.name, own.inside, int(begin), int(until), 0.0, -1
                )
    numbers = [*moved(parts)]
    for part in parts:
        tracks: list[int] = []
        seen: dict[tuple[str, float], list[int]] = {}
        for one in reversed(numbers):
            seen.setdefault((one.collective, one.bytes), []).append(one.number)
        for mark in part.collectives:
            track = next((k for k, end in enumerate(tracks) if end <= mark.start), len(tracks))
            tracks[track : track + 1] = [mark.end]
            left = seen[mark.collective, mark.bytes]
            number = left.pop() if left and mark.collective != "p2p" else -1
            yield OperatorRow(part.rank, f"gloo {track}", mark.collective, "", mark.start, mark.end,
                      mark.bytes, number)  # fmt: skip


def timeline(found: Sequence[OperatorRow], run: CpuRun) -> Timeline:
    """Return a timeline: operators wait for nothing, collectives are communications."""
    ranks, dimension = tuple(range(run.world)), _DIMENSIONS.get(run.mode, "dp")
    build, groups = Builder(), dict[int, list[int]]()
    ordered = sorted(found, key=lambda row: (row.rank, row.stream, row.start, row.end))
    for k, row in enumerate(ordered):
        work: Any = Fixed((row.end - row.start) / 1e9)
        if row.stream != "cpu":
            work = Communication(row.name, row.bytes, ranks, dimension)
            groups.setdefault(row.number if row.number >= 0 else -1 - k, []).append(k)
        build.add(row.name, row.rank, row.stream, work, phase=_PHASES.get(row.inside, ""))
    for members in groups.values():
        build.join(members)
    spans = np.array([(row.start, row.end) for row in ordered], float).reshape(-1, 2) / 1e9
    return Timeline(build.graph(), spans[:, 0].copy(), spans[:, 1].copy())
