"""Finds which rank each file is of, and each GPU in a file of several."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schedules.input_error import InputError
from traces.kineto.rows import RankRows
from traces.recording import Selection

_WORKER = re.compile(r"(?:\.[0-9]+)?(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$")


def one_per_rank(traces: Sequence[RankRows]) -> list[RankRows]:
    """Return one trace per rank, ascending. Raises InputError if two are of one rank."""
    _number(found := [rank for trace in traces for rank in split(trace)])
    by_rank: dict[int, RankRows] = {}
    for trace in found:
        if trace.rank in by_rank:
            other = by_rank[trace.rank].path
            raise InputError(f"{other} and {trace.path} are both of rank {trace.rank}; give one")
        by_rank[trace.rank] = trace
    return [by_rank[rank] for rank in sorted(by_rank)]


def selected(traces: Sequence[RankRows], selection: Selection) -> list[RankRows]:
    """Return the traces that were asked for. Raises InputError for one that is not there."""
    if selection.ranks is None:
        return [*traces]
    by_rank = {trace.rank: trace for trace in traces}
    for rank in selection.ranks:
        if rank not in by_rank:
            there = ", ".join(map(str, sorted(by_rank)))
            raise InputError(f"there is no file of rank {rank}; there are {there}")
    return [by_rank[rank] for rank in sorted({*selection.ranks})]


def _number(traces: Sequence[RankRows]) -> None:
    """Give numbers to traces that do not say their rank, by their names, as TensorBoard does.

    A file that stands alone is of rank 0. Raises InputError where only some say their rank, or
    where two are of one worker.
    """
    silent = [trace for trace in traces if trace.rank < 0]
    if len(silent) < len(traces):
        for trace in silent[:1]:
            raise InputError(
                f"{trace.path} does not say its rank, but other files do; name it rank0.json, or "
                "after whatever its rank is"
            )
        return
    by_worker: dict[str, RankRows] = {}
    for trace in silent:
        if (name := worker(trace.path)) in by_worker:
            raise InputError(
                f"{by_worker[name].path} and {trace.path} are both of worker {name}, and do not "
                "say their rank; give one, or name them rank0.json, rank1.json"
            )
        by_worker[name] = trace
    order = sorted(by_worker, key=_natural)
    for rank, name in enumerate(order):
        by_worker[name].rank = rank
    if len(order) > 1:
        some = ", ".join(f"{name} is {rank}" for rank, name in enumerate(order[:4]))
        by_worker[order[0]].warnings.append(
            f"no file says its rank, so ranks are in the order of their names: {some}"
            + (", ..." if len(order) > 4 else "")
        )


def worker(path: Path) -> str:
    """Return the worker after which a profiler's file is named.

    >>> worker(Path("host1_4001.170.pt.trace.json.gz")), worker(Path("a.json"))
    ('host1_4001', 'a')
    """
    return _WORKER.sub("", path.name)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts host2 before host10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _parts(name)]


def _parts(name: str) -> list[str]:
    return re.findall(r"[0-9]{1,18}|[^0-9]+", name)


def split(trace: RankRows) -> list[RankRows]:
    """Split a file of several ranks: return a trace for each GPU.

    A file is of several ranks if it has several GPUs, and as many processes that launch on them, or
    no host events at all. Several GPUs that one process drives are one rank.
    """
    devices = sorted({op.device for op in trace.gpu})
    if len(devices) < 2:
        return [trace]
    threads = {row.thread for row in trace.calls}
    processes = sorted({trace.processes[thread] for thread in threads})
    if len(processes) < 2 and threads:
        trace.warnings.append(
            f"{trace.path.name} holds GPUs {_some(devices)} of one process; they are one rank"
        )
        return [trace]
    of = _owners(trace, devices) if threads else {}
    out = [_part(trace, device, of.get(device)) for device in devices]
    out[0].warnings = [
        *trace.warnings,
        f"{trace.path.name} holds GPUs {_some(devices)} of several processes; each is a rank",
    ]
    return out


def _owners(trace: RankRows, devices: Sequence[int]) -> dict[int, int]:
    """Return the process of each device: the one that launched most of its ops.

    Each process is taken once, if possible. Correlation numbers begin anew in each process, so of
    several launches of one number those count that lie before the op. Where that does not tell,
    devices and processes are in one order.
    """
    calls: dict[int, list[tuple[int, int]]] = {}
    for call in trace.calls:
        if call.correlation > 0:
            row = (call.start, trace.processes[call.thread])
            calls.setdefault(call.correlation, []).append(row)
    votes: Counter[tuple[int, int]] = Counter()
    for op in trace.gpu:
        for start, process in calls.get(op.correlation, ()):
            votes[op.device, process] += start <= op.start
    processes = sorted({process for _, process in votes})

    def rank(vote: tuple[int, int]) -> tuple[int, int]:
        return -votes[vote], abs(devices.index(vote[0]) - processes.index(vote[1]))

    out: dict[int, int] = {}
    for device, process in sorted(votes, key=rank):
        if device not in out and process not in out.values():
            out[device] = process
    return out


def _part(trace: RankRows, device: int, process: int | None) -> RankRows:
    """Return the rows of one GPU and of one process."""
    mine = {thread for thread, of in trace.processes.items() if of == process}
    calls = [row for row in trace.calls if row.thread in mine]
    called = {call.correlation for call in calls}
    return RankRows(
        trace.path,
        rank=device,
        world_size=trace.world_size,
        gpu=[op for op in trace.gpu if op.device == device],
        calls=calls,
        syncs=[row for row in trace.syncs if row.correlation in called],
        marks=[row for row in trace.marks if row.thread in mine],
        posted=[row for row in trace.posted if row.thread in mine],
        groups=trace.groups,
        operators=trace.operators.of(mine),
        processes=trace.processes,
    )


def _some(devices: Sequence[int]) -> str:
    return ", ".join(map(str, devices[:8])) + (", ..." if len(devices) > 8 else "")
