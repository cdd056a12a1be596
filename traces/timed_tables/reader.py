"""Reads recorded pipeline jobs in which every operation was timed (ByteDance StragglerAnalysis).

The Parquet table has one row per operation: dp_rank, stage, rank, step, optype, start_ts (seconds
from the step's first operation), duration in seconds, seq_id, mc (model chunk of the worker), mb_id
(microbatch) and gmc (model chunk of the job). Sends, receives and collectives were timed on every
worker, so their durations include the wait for the others; data moved during the shortest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from schedules.input_error import InputError
from sim.graph import Builder, Fixed
from sim.timeline import Timeline
from traces import cut
from traces.packed import starts
from traces.recording import Recording, Report, Selection
from traces.timed_tables import waits as model
from traces.timed_tables.groups import relations

COLUMNS = (
    "dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id",
    "gmc",
)  # fmt: skip
WHOLE = ("dp_rank", "stage", "rank", "step", "mc", "mb_id", "gmc")
PERHAPS = {"mc", "mb_id", "gmc"}  # -1: none
PHASES = {"forward": "F", "backward": "B", "optimizer": "O", "gc": "O", "grads": "O"}
DIMENSIONS = {"forward": "pp", "backward": "pp", "params": "dp", "grads": "dp", "separate": "dp",
              "embedding": "embedding", "layernorm": "tp", "optimizer": "model"}  # fmt: skip
MAGIC = b"PAR1"


def recognises(path: Path) -> bool:
    """Return whether this is a Parquet file; :func:`read` finds out what is in it."""
    return starts(path, MAGIC)


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read one job; its steps, each of which begins at 0 s, are put one after another from 0.

    Raises InputError for another table, for a step or rank that is not there, or for operations
    that do not fit together.
    """
    if len(paths) != 1:
        raise InputError(f"a table of timed operations is one file, not {len(paths)}")
    report("reading", 0, 0)
    table = _ordered(_table(paths[0]), selection.step, paths[0])
    timeline = cut.select(_timeline(table, report), selection)
    return Recording(
        timeline,
        "stragglers",
        tuple(paths),
        cut.counts(timeline.graph),
        steps=tuple(table["step"].unique().tolist()),
    )


def _table(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except (ValueError, OSError) as error:  # pyarrow's own are ValueErrors
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from error
    if missing := [name for name in COLUMNS if name not in table]:
        raise InputError(
            f"{path} has no column {', '.join(missing)}; a table of timed operations has "
            f"{', '.join(COLUMNS)}"
        )
    if not len(table):
        raise InputError(f"{path} has no rows")
    table = table[[*COLUMNS]].astype({"optype": str})
    for name in ("start_ts", "duration"):
        table[name] = pd.to_numeric(table[name], errors="coerce").astype(float)
    numbers = table[["start_ts", "duration"]].to_numpy()
    if not np.isfinite(numbers).all() or (table["duration"] < 0).any():
        raise InputError(f"{path} has times that are negative or no numbers")
    for name in WHOLE:
        whole = pd.to_numeric(table[name], errors="coerce").to_numpy(float)
        least = -1 if name in PERHAPS else 0
        if not ((whole >= least) & (whole < 2**31)).all() or (whole % 1).any():
            raise InputError(
                f"{path} has entries of {name} that are no whole numbers from {least} on"
            )
        table[name] = whole.astype(int)
    if unknown := sorted({*table["optype"]} - {*model.TYPES}):
        raise InputError(
            f"{path} has operations {', '.join(unknown)}; known are {', '.join(model.TYPES)}"
        )
    return table


def _ordered(table: pd.DataFrame, step: int | None, path: Path) -> pd.DataFrame:
    """Return the rows of a step, or all, ordered by step, rank and start."""
    if step is not None:
        there = sorted(table["step"].unique().tolist())
        if step not in there:
            some = ", ".join(map(str, there[:8])) + (", ..." if len(there) > 8 else "")
            raise InputError(f"{path} has no step {step}; there are {some}")
        table = table[table["step"] == step]
    order = ["step", "rank", "start_ts", "seq_id", "optype"]
    table = table.sort_values(order, kind="stable", ignore_index=True)
    number = table["step"].rank(method="dense").astype(int) - 1
    return table.assign(number=number)


def _timeline(table: pd.DataFrame, report: Report) -> Timeline:
    """Return the graph of all rows, each the op of its index, and when they ran."""
    start = (table["start_ts"] + _offsets(table)).to_numpy()
    waits, groups = relations(table, report)
    seconds = table["duration"].to_numpy(copy=True)
    for members in groups:
        seconds[members] = seconds[members].min()
    builder = Builder()
    for row, of in zip(table.itertuples(index=False), seconds.tolist(), strict=True):
        _add(builder, row, of)
    for later, earlier in waits:
        builder.wait(later, earlier)
    for members in groups:
        builder.join(members)
    return Timeline(builder.graph(), start, start + table["duration"].to_numpy())


def _offsets(table: pd.DataFrame) -> pd.Series[float]:
    """Return the seconds from the first step's beginning to that of each row's step."""
    ends = (table["start_ts"] + table["duration"]).groupby(table["step"]).max()
    return table["step"].map(ends.cumsum() - ends)


def _add(builder: Builder, row: Any, seconds: float) -> None:
    kind = row.optype.split("-")[0]
    compute = row.optype in model.COMPUTE
    work = Fixed(seconds) if compute else Fixed(seconds, "communication", DIMENSIONS[kind])
    builder.add(
        row.optype,
        row.rank,
        model.STREAMS.get(row.optype, row.optype),
        work,
        phase=PHASES.get(kind, "O"),
        stage=row.stage if row.gmc < 0 else row.gmc,
        microbatch=row.mb_id if row.optype in model.COMPUTE[:2] else -1,
        step=row.number,
    )
