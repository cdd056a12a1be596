"""Reads Nsight Systems reports, exported to SQLite (``nsys export --type sqlite``).

Kernels, copies and memory sets stand on the streams of their GPU, calls of the CUDA runtime on a
stream of their thread. A call and what it launched have the same correlation number within a
process; :mod:`traces.nsys.waits` finds what calls and streams wait for. Waits between streams are
known only if the report says which event was recorded when; otherwise the recording warns.

A rank is a process on a GPU, numbered over files in the order given. Tables and columns are those
of NVIDIA's "SQLite Export Schema Reference"; tables that a report lacks are taken to be empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from schedules.input_error import InputError
from sim.graph import Builder, Fixed, Graph
from sim.timeline import Timeline
from traces import cut, kernel_names
from traces.nsys.tables import STEP_RANGE, calls, gpu_ops, step_ranges, syncs
from traces.nsys.waits import STREAM_WAIT, with_waits
from traces.packed import starts
from traces.recording import Recording, Report, Selection
from traces.replay.lags import is_host, launched

MAGIC = b"SQLite format 3\0"
COLLECTIVE = "nccl"  # names of communication kernels begin with it


def recognises(path: Path) -> bool:
    """Return whether this is an SQLite file."""
    return starts(path, MAGIC)


def read(paths: Sequence[Path], selection: Selection, report: Report) -> Recording:
    """Read reports of one run.

    Raises InputError for other databases, or for a step that no NVTX range is named after.
    """
    tables, waits = [], []
    for number, path in enumerate(paths):
        report("reading", number, len(paths))
        rows, told = _table(path, selection.step)
        tables.append(rows.assign(file=number))
        waits.append(told.assign(file=number))
    said = pd.concat([of for of in waits if len(of)] or waits[:1], ignore_index=True)
    rows = pd.concat(tables, ignore_index=True)
    negative = int((rows["end"] < rows["start"]).sum())
    rows["end"] = np.maximum(rows["start"], rows["end"])
    table = with_waits(_ranked(rows), said)
    found = _collectives(table)
    offsets = _offsets(table, found)
    seconds = table["rank"].map(offsets).to_numpy(float)
    zero = float((table["start"] / 1e9 + seconds).min())
    start, end = (table[key].to_numpy() / 1e9 + seconds - zero for key in ("start", "end"))
    rules = kernel_names.rules(selection.names)
    whole = Timeline(_graph(table, found, start, end, rules).graph(), start, end)
    timeline = cut.select(whole, selection)
    return Recording(
        timeline,
        "nsys",
        tuple(paths),
        _counts(timeline.graph),
        warnings=(*_negative(negative), *_warnings(table, found, said)),
        steps=() if selection.step is None else (selection.step,),
        clock_offsets=offsets,
    )


def _table(path: Path, step: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what ran on GPUs and what the host called, ordered by start, and what waited."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            gpu, host = gpu_ops(database), calls(database)
            ranges, waits = step_ranges(database), syncs(database)
    except (sqlite3.Error, UnicodeDecodeError, pd.errors.DatabaseError) as error:
        raise InputError(f"{path} is not a report that nsys exported: {error}") from error
    if not len(gpu):
        raise InputError(
            f"{path} holds no kernels or copies; profile with nsys --trace=cuda,nvtx and export "
            f"with nsys export --type sqlite"
        )
    times = gpu[["start", "end", "device"]].apply(pd.to_numeric, errors="coerce")
    if times.isna().any(axis=None):
        raise InputError(f"{path} has kernels or copies without a start, an end or a device")
    gpu, host = gpu.assign(**times.to_dict("series")), _whole(host)
    parts = [gpu.assign(host=False), *([host.assign(host=True)] if len(host) else [])]
    table = pd.concat(parts, ignore_index=True)
    for key in ("correlation", "process"):
        table[key] = pd.to_numeric(table[key], errors="coerce").fillna(-1).astype("int64")
    # a call belongs to the GPU on which what it launched ran, or else to its process's first GPU
    keys = ["process", "correlation"]
    where = gpu.drop_duplicates(keys).set_index(keys)["device"]
    launched = where.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy(float)
    first = table["process"].map(gpu.groupby("process")["device"].min()).to_numpy(float)
    device = np.where(table["host"], np.where(np.isnan(launched), first, launched), table["device"])
    table = table.assign(device=device)[~np.isnan(device)]
    if step is not None:
        table = _of_step(table, ranges, step, path)
    return table.sort_values(["start", "host", "end"], ascending=[True, False, True]), waits


def _whole(host: pd.DataFrame) -> pd.DataFrame:
    """Return the calls that have a begin and an end."""
    times: pd.DataFrame = host[["start", "end"]].apply(pd.to_numeric, errors="coerce")
    there = times.notna().all(axis=1)
    out: pd.DataFrame = host[there]
    return out.assign(start=times["start"][there], end=times["end"][there])


def _of_step(
    table: pd.DataFrame, ranges: dict[int, list[tuple[int, int]]], step: int, path: Path
) -> pd.DataFrame:
    """Return the calls inside the step's NVTX range, and what they launched."""
    if step not in ranges:
        there = ", ".join(map(str, sorted(ranges)[:8])) or "none"
        raise InputError(
            f"{path} has no NVTX range for step {step} (such as {STEP_RANGE}); there are {there}"
        )
    inside = np.zeros(len(table), np.bool_)
    for begin, end in ranges[step]:
        inside |= table["host"] & (table["start"] >= begin) & (table["start"] < end)
    keys = pd.MultiIndex.from_frame(table[["process", "correlation"]])
    return table[inside | keys.isin(keys[inside])]


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Add the number of each row's rank: a rank is a process on a GPU."""
    ranks = table.groupby(["file", "process", "device"], sort=True).ngroup()
    return table.assign(rank=ranks).reset_index(drop=True)


def _collectives(table: pd.DataFrame) -> list[list[int]]:
    """Return the rows of each: the k-th NCCL kernel of a name on every rank, if counts agree."""
    nccl = table[~table["host"] & table["name"].str.startswith(COLLECTIVE)]
    sizes = nccl.groupby(["name", "rank"]).size().unstack(fill_value=0)
    whole = sizes.index[sizes.nunique(axis=1).eq(1) & (sizes.shape[1] == table["rank"].nunique())]
    together = nccl["name"].isin(whole)
    k = nccl.groupby(["name", "rank"]).cumcount()
    groups = nccl[together].groupby([nccl["name"], k]).groups.values()
    return [[*map(int, rows)] for rows in groups] + [[int(row)] for row in nccl.index[~together]]


def _offsets(table: pd.DataFrame, found: list[list[int]]) -> dict[int, float]:
    """Return seconds to add to each rank's clock, so that collectives end together."""
    apart: dict[int, list[float]] = {int(rank): [0.0] for rank in sorted(table["rank"].unique())}
    ends, ranks, files = (table[key].to_numpy() for key in ("end", "rank", "file"))
    for members in found:
        for row in members:
            if files[row] != files[members[0]]:  # ranks of one report have one clock
                apart[int(ranks[row])].append(float(ends[members[0]] - ends[row]) / 1e9)
    return {rank: float(np.median(of[1:] or of)) for rank, of in apart.items()}


def _graph(
    table: pd.DataFrame,
    found: list[list[int]],
    start: cut.Floats,
    end: cut.Floats,
    rules: kernel_names.Rules,
) -> Builder:
    seconds = end - start
    for members in found:
        seconds[members] = seconds[members].min()
    builder = Builder()
    columns = (table[key].tolist() for key in ("name", "full", "rank", "stream", "kind"))
    for name, full, rank, stream, kind, took in zip(*columns, seconds.tolist(), strict=True):
        sort = rules.of(full) if kind == "kernel" else kernel_names.Sort(kind)
        builder.add(name, rank, stream, Fixed(took, *sort))
    for row, needs in enumerate(table["needs"]):
        for need in needs:
            builder.wait(row, need)
    for members in found:
        builder.join(members)
    return builder


def _counts(graph: Graph) -> dict[str, int]:
    """Count what was selected."""
    host = is_host(graph)
    linked = launched(graph, host)
    return cut.counts(graph) | {"gpu_ops": int((~host).sum()), "gpu_ops_linked": int(linked.sum())}


def _negative(number: int) -> tuple[str, ...]:
    """Return the warning about durations below 0, as for profiler files."""
    events = f"{number:,} event{'s' * (number != 1)}"
    return (f"{events} with a duration below 0 taken to last no time",) if number else ()


def _warnings(table: pd.DataFrame, found: list[list[int]], syncs: pd.DataFrame) -> tuple[str, ...]:
    out = []
    matched = sum(len(members) > 1 for members in found)
    streams = table[~table["host"]].groupby("rank")["stream"].nunique()
    told = (syncs["type"] == STREAM_WAIT) & (syncs["on_call"] >= 0)
    if (streams > 1).any() and not told.any():
        out.append(
            "nsys does not say which stream waited for which, so no waits between streams were read"
        )
    if matched < len(found) and table["rank"].nunique() > 1:
        out.append(
            f"{len(found) - matched} NCCL kernels have no partner of the same name on every rank"
        )
    return tuple(out)
