"""Finds which rows of a table of timed operations wait for each other or communicate together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from schedules.input_error import InputError
from traces.recording import Report
from traces.timed_tables import waits as model
from traces.timed_tables.waits import RecordedOp, Worker

GROUPS = (
    ((model.GATHER, model.SCATTER, model.SEPARATE), ("stage",)),
    ((model.EMBEDDING,), ("dp_rank",)),
    ((model.CLIP,), ()),
)
"""Types of collectives, and the columns in which the members of one agree."""


def relations(table: pd.DataFrame, report: Report) -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Return waits (later, earlier) and the members of each communication, by index.

    ``table`` is ordered by step, rank and start, and indexed from 0. Raises InputError when sends
    and receives do not fit together.
    """
    waits, groups = [], list(_collectives(table))
    steps = table["step"].nunique()
    for number, (_, step) in enumerate(table.groupby("step")):
        report("steps", number, steps)
        found = _workers(step)
        waits += [wait for of in found.values() for wait in of.waits]
        groups += _pairs(step, found)
    return waits + list(_next_steps(table)), groups


def _workers(step: pd.DataFrame) -> dict[tuple[int, int], Worker]:
    """Return the waits of every worker in one step, by dp_rank and stage."""
    stages = int(step["stage"].max() + 1) * int(step["mc"].max() + 1)
    ends = step["start_ts"] + step["duration"]
    columns = (step.index, step["optype"], step["start_ts"], ends, step["mc"], step["gmc"])
    rows = [RecordedOp(*values) for values in zip(*(c.tolist() for c in columns), strict=True)]
    of: defaultdict[tuple[int, int], list[RecordedOp]] = defaultdict(list)
    for row, *place in zip(rows, step["dp_rank"].tolist(), step["stage"].tolist(), strict=True):
        of[place[0], place[1]].append(row)
    return {place: model.worker(mine, stages) for place, mine in of.items()}


def _pairs(step: pd.DataFrame, found: Mapping[tuple[int, int], Worker]) -> Iterator[list[int]]:
    """Yield each send with its receive: the k-th of a stage is the k-th of its neighbour."""
    pipeline = int(step["stage"].max()) + 1
    for (replica, stage), mine in found.items():
        for kind, to in (("forward", 1), ("backward", -1)):
            peer = found.get((replica, (stage + to) % pipeline))
            sends = mine.p2p[f"{kind}-send"]
            receives = peer.p2p[f"{kind}-recv"] if peer else []
            if len(sends) != len(receives):
                raise InputError(
                    f"step {step['step'].iloc[0]}: stage {stage} has {len(sends)} {kind}-send, but "
                    f"the stage it sends to has {len(receives)} {kind}-recv (dp_rank {replica})"
                )
            yield from map(list, zip(sends, receives, strict=True))


def _collectives(table: pd.DataFrame) -> Iterator[list[int]]:
    """Yield the members of each collective: over the replicas, the ends of a pipeline, or all."""
    for kinds, keys in GROUPS:
        rows = table[table["optype"].isin(kinds)]
        for members in rows.groupby(["step", "optype", "seq_id", *keys]).groups.values():
            yield members.tolist()


def _next_steps(table: pd.DataFrame) -> Iterator[tuple[int, int]]:
    """Yield waits that let a worker begin its next step when it has ended the one before."""
    streams = table["optype"].map(lambda kind: model.STREAMS.get(kind, kind))
    firsts = table.groupby(["rank", "number", streams]).head(1)
    ends = table["start_ts"] + table["duration"]
    last: dict[Any, Any] = ends.groupby([table["rank"], table["number"]]).idxmax().to_dict()
    for op, rank, number in zip(firsts.index, firsts["rank"], firsts["number"], strict=True):
        if (rank, number - 1) in last:  # it may have recorded nothing of it
            yield op, last[rank, number - 1]
