"""Writes the critical path into a trace file: a track of its own, and each op's slack."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.analysis.critical_path import critical_path
from sim.analysis.path import path
from sim.analysis.slack import slack
from sim.graph import Longs
from sim.timeline import Timeline
from traces.chrome import LIMIT, Event, named, window_stamps

NAME = "critical path"
PLACE = -1
"""It sorts before the ranks."""


class Why:
    """What a timeline's critical path says about each op, found once."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._critical = {*critical_path(timeline).ops}
        some = len(timeline.graph) <= LIMIT  # for larger graphs it would take much memory
        self._slack = slack(timeline).seconds.tolist() if some else None

    def of(self, op: int) -> Event:
        """Return args of an op: ``critical`` if it is on the path, and ``slack_s``, seconds."""
        args: Event = {"critical": True} if op in self._critical else {}
        return args if self._slack is None else args | {"slack_s": self._slack[op]}

    def track(self, ops: Longs) -> Iterator[Event]:
        """Yield a process with the path's stretches through written ops, by what they are."""
        timeline = self._timeline
        pid = int(timeline.graph.rank.max(initial=-1)) + 1
        rows = path(timeline)
        rows = rows[np.isin(rows["op"], ops) & (rows["end"] > rows["start"])]
        if rows.empty:
            return
        yield from named("process", NAME, PLACE, pid)
        yield from named("thread", NAME, 0, pid)
        begin, duration = window_stamps(timeline, rows["start"].to_numpy(), rows["end"].to_numpy())
        keys = ["name", "rank", "stream", "seconds", "straggler"]
        columns = [rows[key].tolist() for key in ("cause", *keys)]
        for ts, dur, cause, *values in zip(
            begin.tolist(), duration.tolist(), *columns, strict=True
        ):
            args = dict(zip(keys, values, strict=True))
            if args["straggler"] < 0:
                del args["straggler"]
            where = {"pid": pid, "tid": 0, "ts": ts, "dur": dur}
            yield {"ph": "X", "name": cause, **where, "args": args}
