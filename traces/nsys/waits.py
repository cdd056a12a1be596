"""Finds what waits for what in a report of Nsight Systems: launches, calls that wait, streams.

The rules are those for PyTorch's profiler (:mod:`traces.kineto.host`), as both files hold what
CUPTI says. A report names the stream or the event of a synchronisation; it is known which op an
event stands for if the report has a row for the event's record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from traces.kineto.host import HostOp, host_ops
from traces.kineto.link import launches
from traces.kineto.rows import GpuOp, RankRows, RuntimeCall, Sync
from traces.kineto.waits import Edge, Launched, waits

EVENT, STREAM_WAIT, STREAM, CONTEXT = 1, 2, 3, 4
"""CUpti_ActivitySynchronizationType."""
_KINDS = {EVENT: "Event Sync", STREAM_WAIT: "Stream Wait Event", STREAM: "Stream Sync",
          CONTEXT: "Context Sync"}  # fmt: skip


def with_waits(table: pd.DataFrame, syncs: pd.DataFrame) -> pd.DataFrame:
    """Add ``needs`` to the rows of all ranks, by start: the rows that each waits for.

    Calls that launch end when what they launched began, or before; calls that wait begin when what
    they wait for has ended. A call that does both becomes two rows.
    """
    parts, first = [], 0
    for (file, process, _), rows in table.groupby(["file", "process", "rank"], sort=False):
        mine = syncs[(syncs["file"] == file) & (syncs["process"] == process)]
        part = _of_rank(rows, [*_syncs(mine)])
        part["needs"] = [[first + need for need in needs] for needs in part["needs"]]
        parts.append(part)
        first += len(part)
    whole = pd.concat(parts, ignore_index=True)
    order = whole.sort_values(
        ["start", "host", "end"], ascending=[True, False, False], kind="stable"
    )
    place = pd.Series(range(len(order)), order.index)
    needs = [[int(place[need]) for need in of] for of in order["needs"]]
    order["needs"] = pd.Series(needs, order.index, dtype=object)
    return order.reset_index(drop=True)


def _syncs(of: pd.DataFrame) -> Iterator[Sync]:
    """Yield a process's synchronisations; for events, with the stream and call that recorded."""
    for row in of.to_dict("records"):
        kind = _KINDS.get(int(row["type"]))
        if kind is None:
            continue
        host = kind in ("Event Sync", "Context Sync")
        yield Sync(
            kind, -1 if host else int(row["stream"]), int(row["on_stream"]), int(row["on_call"]),
            int(row["correlation"]), int(row["start"]),
        )  # fmt: skip


def _of_rank(rows: pd.DataFrame, syncs: list[Sync]) -> pd.DataFrame:
    """Return rows with the numbers of the rows of this rank that they wait for."""
    gpu = rows[~rows["host"]].assign(number=_numbers(rows[~rows["host"]]))
    gpu = gpu.sort_values(["number", "start", "end"])
    calls = rows[rows["host"]].assign(number=_numbers(rows[rows["host"]]))
    calls = calls.sort_values(["start", "end"], ascending=[True, False])
    trace = RankRows(Path(), gpu=[*_gpu(gpu)], calls=[*_calls(calls)], syncs=syncs)
    launch = launches(trace)
    launched = Launched(trace, launch)
    edges = waits(trace, launch, [()] * len(gpu), launched) if syncs else []
    host = host_ops(trace, launch, launched, edges)
    known = {(op.name, op.thread, op.begun) for op in host}
    plain = [(call.name, call.thread, call.start) not in known for call in trace.calls]
    columns = [*rows.columns]
    made = pd.DataFrame([_host_row(op, calls.iloc[0]) for op in host], columns=columns)
    parts = [of for of in (gpu[columns], made, calls[columns][plain]) if len(of)]
    out = pd.concat(parts, ignore_index=True)
    out["needs"] = pd.Series(_needs(len(out), len(gpu), host, edges), out.index, dtype=object)
    return out


def _numbers(rows: pd.DataFrame) -> pd.Series[int]:
    """Return the number in the name of each stream or thread, -1 where there is none."""
    numbers = rows["stream"].astype(str).str.extract(r"(-?[0-9]{1,18})$", expand=False)
    return numbers.fillna("-1").astype("int64")


def _gpu(rows: pd.DataFrame) -> Iterator[GpuOp]:
    columns = (rows[key].tolist() for key in ("name", "kind", "start", "end", "number"))
    for (name, kind, start, end, stream), correlation in zip(
        zip(*columns, strict=True), rows["correlation"].tolist(), strict=True
    ):
        yield GpuOp(name, kind, int(start), int(end), 0, stream, int(correlation), None)


def _calls(rows: pd.DataFrame) -> Iterator[RuntimeCall]:
    columns = (rows[key].tolist() for key in ("name", "number", "start", "end", "correlation"))
    for name, thread, start, end, correlation in zip(*columns, strict=True):
        yield RuntimeCall(name, thread, int(start), int(end), int(correlation))


def _host_row(op: HostOp, like: pd.Series[Any]) -> dict[str, Any]:
    times = {"start": op.start, "end": op.end, "correlation": -1}
    same = {str(key): value for key, value in like.items()}
    return {**same, **times, "name": op.name, "stream": f"host {op.thread}"}


def _needs(rows: int, gpu: int, host: Sequence[HostOp], edges: Sequence[Edge]) -> list[list[int]]:
    """Return what each row waits for; ops of the GPU are first, then the host's."""
    out: list[list[int]] = [[] for _ in range(rows)]
    for k, op in enumerate(host, gpu):
        out[k] += op.on
        for launched in op.launches:
            out[launched].append(k)
    for later, earlier in edges:
        out[later].append(earlier)
    return out
