"""Builds one timeline from the rows of all ranks."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.graph import Builder, Fixed, Floats
from sim.timeline import Timeline
from traces.kineto.clocks import ClockCorrection
from traces.kineto.collectives import Met
from traces.kineto.host import HostOp
from traces.kineto.linked import Linked
from traces.kineto.message import CommunicationRecord
from traces.kineto.names import DIMENSIONS
from traces.kineto.rank import GpuOp
from traces.replay.lags import exact

TRACK = 1e-6
"""Ops of a stream may overlap by so many seconds (clocks in whole us) before they get tracks."""

MOST_HELD = 0.5
"""The largest share of a GPU's SMs that a communication kernel is taken to hold at one time."""

Spans = tuple[Floats, Floats]  # start and end of each row, seconds


@dataclass(frozen=True)
class AlignedRank:
    """A rank with its rows in seconds of the common clock."""

    of: Linked
    gpu: Spans
    host: Spans
    zero: int  # the nanosecond at which the common clock is at 0
    clock: ClockCorrection

    def seconds(self, nanoseconds: Sequence[int] | array[int]) -> Floats:
        """Return instants of the rank's own clock as seconds of the common clock."""
        return self.clock((np.array(nanoseconds, np.int64) - self.zero) / 1e9)

    @property
    def rank(self) -> int:
        """The number of the rank."""
        return self.of.trace.rank


class BuiltRows(NamedTuple):
    """Which rows of a rank are built."""

    gpu: list[int]
    host: list[int]


def aligned(of: Linked, zero: int, clock: ClockCorrection) -> AlignedRank:
    """Put the rows of a rank on the common clock, whose second 0 is the nanosecond ``zero``."""

    def spans(rows: Sequence[GpuOp] | Sequence[HostOp]) -> Spans:
        times = np.array([(row.start - zero, row.end - zero) for row in rows], np.int64)
        start, end = times.reshape(-1, 2).T / 1e9
        return clock(start), clock(end)

    return AlignedRank(of, spans(of.trace.gpu), spans(of.host), zero, clock)


class Built(NamedTuple):
    """The timeline, and per op the share of the SMs that its communication holds, if known."""

    timeline: Timeline
    sms: Floats


def build(ranks: Sequence[AlignedRank], kept: Mapping[int, BuiltRows], met: Sequence[Met]) -> Built:
    """Make all kept rows ops from second 0 on, with lags such that a simulation repeats them."""
    builder = Builder()
    start: list[float] = []
    end: list[float] = []
    sms: dict[int, float] = {}
    index: dict[int, dict[int, int]] = {}
    for one in ranks:
        index[one.rank] = _rank(builder, one, kept[one.rank], start, end)
        ops, held = one.of.trace.gpu, max(one.of.trace.sms, 1)
        blocks = {i: ops[k].blocks for k, i in index[one.rank].items() if one.of.trace.sms}
        sms |= {i: min(of / held, MOST_HELD) for i, of in blocks.items() if of}
    starts, ends = np.array(start, np.float64), np.array(end, np.float64)
    for group in met:
        _join(builder, group, index, starts, ends)
    zero = starts.min(initial=np.inf)
    timeline = Timeline(builder.graph(), starts - zero, ends - zero)
    held_of = np.zeros(len(starts))
    held_of[[*sms]] = [*sms.values()]
    return Built(exact(timeline) if len(starts) else timeline, held_of)


def _rank(
    builder: Builder, one: AlignedRank, kept: BuiltRows, start: list[float], end: list[float]
) -> dict[int, int]:
    """Add one rank's ops, ordered by start; return where its GPU ops are."""
    of, place = one.of, _streams(one, kept.gpu)
    host_index: dict[int, int] = {}
    index: dict[int, int] = {}
    rows = [(one.host[0][k], 0, k) for k in kept.host] + [(one.gpu[0][k], 1, k) for k in kept.gpu]
    for _, on_gpu, k in sorted(rows):
        if on_gpu:
            index[k] = _gpu_op(builder, one, k, place[k])
        else:
            op = of.host[k]
            seconds = float(one.host[1][k] - one.host[0][k])
            host_index[k] = builder.add(
                op.name, one.rank, f"host {op.thread}", Fixed(seconds, "host"), step=of.host_step[k]
            )
        spans = one.gpu if on_gpu else one.host
        start.append(float(spans[0][k]))
        end.append(float(spans[1][k]))
    for k, i in host_index.items():
        for launched in of.host[k].launches:
            if launched in index:
                builder.wait(index[launched], i)
        for awaited in of.host[k].on:
            if awaited in index:
                builder.wait(i, index[awaited])
    for later, earlier in of.edges:
        if later in index and earlier in index:
            builder.wait(index[later], index[earlier])
    _hand_over(builder, of, host_index)
    return index


def _gpu_op(builder: Builder, one: AlignedRank, k: int, stream: str) -> int:
    of = one.of
    op, said, action = of.trace.gpu[k], of.messages[k], of.action[k]
    seconds = float(one.gpu[1][k] - one.gpu[0][k])
    work = Fixed(seconds, op.kind)
    if said:
        work = Fixed(seconds, "communication", dimension(said[0]))
    return builder.add(
        op.name, one.rank, stream, work,
        phase=action.phase, stage=action.stage, microbatch=action.microbatch, step=of.gpu_step[k],
    )  # fmt: skip


def dimension(of: CommunicationRecord) -> str:
    """Return the dimension of a communication: "tp", "pp", ..., or "" if it is unknown.

    It follows from the name of the process group; otherwise a message is "pp", and a collective is
    what the name of its kernel says.
    """
    unless = "pp" if of.collective in ("send", "recv") else of.dimension
    return DIMENSIONS.get(of.description, unless)


def _hand_over(builder: Builder, of: Linked, index: Mapping[int, int]) -> None:
    """Add waits where one thread goes on after another has been busy: it waits for its last op.

    That is how PyTorch's threads take turns: the main thread stands still during a backward.
    """
    ended: dict[int, int] = {}  # thread -> end of its last op
    before: int | None = None
    for k in index:
        op = of.host[k]
        if before is not None:
            last = of.host[before]
            if (
                last.thread != op.thread
                and ended.get(op.thread, -1) <= last.start
                and last.end <= op.start
            ):
                builder.wait(index[k], index[before])
        ended[op.thread] = op.end
        before = k


def _streams(one: AlignedRank, kept: Sequence[int]) -> dict[int, str]:
    """Return the stream of each GPU op; ops that overlap on one stream get tracks of it.

    A stream is called "stream 7", or "stream 24 communication" where only that kind of op runs on
    it. With several devices in a file, its name has the device too.
    """
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k in kept:
        op = one.of.trace.gpu[k]
        rows[op.device, op.stream].append(k)
    several = len({device for device, _ in rows}) > 1
    out: dict[int, str] = {}
    for (device, stream), ops in rows.items():
        if one.of.cpu_only:
            name = f"cpu {stream}" if stream > 1 else "cpu" if stream else "gloo"
            out |= _lanes(one, ops, name)
            continue
        sorts = {"communication" if one.of.messages[k] else one.of.trace.gpu[k].kind for k in ops}
        name = f"stream {stream}" + (f" of GPU {device}" if several else "")
        if sorts in ({"communication"}, {"copy"}):
            name += f" {sorts.pop()}"
        out |= _lanes(one, ops, name)
    return out


def _lanes(one: AlignedRank, ops: Sequence[int], name: str) -> dict[int, str]:
    """Put ops that overlap on one stream on tracks of it."""
    out = {}
    tracks: list[float] = []
    for k in ops:
        begin, finish = float(one.gpu[0][k]), float(one.gpu[1][k])
        track = next((n for n, until in enumerate(tracks) if until <= begin + TRACK), len(tracks))
        tracks[track : track + 1] = [max(finish, *tracks[track : track + 1], finish)]
        out[k] = f"{name} ({track + 1})" if track else name
    return out


def _join(
    builder: Builder,
    met: Met,
    index: Mapping[int, Mapping[int, int]],
    start: Floats,
    end: Floats,
) -> None:
    """Make the members one part.

    Its work is the time between the last member's start and the first end, in which the data moved.
    Where clocks cannot be aligned, that may be nothing; then it is the shortest member's time.
    """
    ops = [index[rank][row] for rank, row in met.members.items() if row in index.get(rank, {})]
    if len(ops) < 2:
        return
    first_end, shortest = end[ops].min(), (end[ops] - start[ops]).min()
    moved = first_end - start[ops].max()
    tails = (end[ops] - first_end).tolist()
    if moved < shortest / 2:
        moved, tails = shortest, [0.0] * len(ops)
    of = dimension(met.message)
    builder.join(ops, Fixed(float(moved), "communication", of), tails)
