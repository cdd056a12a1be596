"""Reads files of PyTorch's profiler, one per rank, into a recording."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from schedules.input_error import InputError
from traces import kernel_names
from traces.kineto import inferred_waits, steps
from traces.kineto.build import AlignedRank, BuiltRows, aligned, build
from traces.kineto.busy import busy, instance
from traces.kineto.clocks import ClockCorrection, align, residual
from traces.kineto.collectives import Met, complete, meet
from traces.kineto.linked import Linked, linked
from traces.kineto.members import missing
from traces.kineto.members import warning as lacking
from traces.kineto.rank import read as read_rank
from traces.kineto.ranks import one_per_rank, selected
from traces.kineto.sanity import sound
from traces.packed import beginning
from traces.recording import Recording, Report, Selection, no_report

_MARKS = re.compile(
    rb'"deviceProperties"|"distributedInfo"'
    rb'|"cat"\s*:\s*"(?:cpu_op|Operator|cuda_runtime|Runtime|kernel|Kernel|python_function)"'
)
_SIMULTANEOUS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
"""Collectives that end on all ranks at one time."""


def recognises(path: Path) -> bool:
    """Return whether a file, or some file of a folder, is of PyTorch's profiler."""
    return bool(_files(path)) if path.is_dir() else _is_kineto(path)


def read(
    paths: Sequence[Path],
    selection: Selection = Selection(),  # noqa: B008  (immutable)
    report: Report = no_report,
) -> Recording:
    """Read files, or folders of them. Raises InputError where there is nothing to read.

    A file is read as a stream: only GPU ops and calls that launch or wait need memory, about 1 kB
    each.
    """
    files = [file for path in paths for file in _files(path)]
    rules = kernel_names.rules(selection.names)
    every = one_per_rank([sound(read_rank(file, report, rules)) for file in files])
    traces = selected(every, selection)
    report("matching ranks", 0, 0)
    ranks = [linked(trace) for trace in traces]
    said, shared = steps.warnings(ranks), steps.shared(ranks)
    met = meet({one.trace.rank: one.kernels() for one in ranks}, steps.of_kernels(ranks))
    starts = [rows[k].start for t in traces for rows in (t.gpu, t.calls) for k in range(len(rows))]
    zero = min(starts, default=0)
    clocks, left = _clocks(ranks, met, zero)
    ranks, numbers = steps.common(ranks, clocks, zero)
    placed = [aligned(one, zero, clocks[one.trace.rank]) for one in ranks]
    first = _first(placed)
    kept = {one.rank: _kept(one, selection, first, numbers) for one in placed}
    timeline, sms = build(placed, kept, met)
    if not len(timeline.graph):
        if selection.window:
            raise InputError("no op lies in the window; give an earlier or longer one")
        raise InputError(f"{files[0]} holds no op of a GPU or CPU that can be read")
    if inferred_waits.lack(ranks):
        known, timeline = len(timeline.graph.wait_on), inferred_waits.inferred(timeline)
        said += [inferred_waits.SAID] * (len(timeline.graph.wait_on) > known)
    began = _began(placed, kept)
    there = _within(kept, met)
    counts, warned = _counts(kept, there)
    lost = missing(there, [one.rank for one in every], max(t.world_size for t in traces))
    if lost:
        said.append(lacking(there, {t.rank: t.gpu for t in traces}, lost))
    return Recording(
        timeline=timeline,
        format="kineto",
        files=tuple(files),
        counts={**_ops(placed, kept), **counts},
        warnings=tuple(
            [w for trace in traces for w in trace.warnings]
            + said
            + warned
            + _warnings(placed, kept)
        ),
        steps=numbers,
        incomparable=_incomparable(lost, shared, selection),
        operators={
            key: of
            for one in placed
            if not one.of.cpu_only
            for key, of in busy(one, selection, first, began).items()
        },
        clock_offsets={rank: clock.offset for rank, clock in clocks.items()},
        clock_drifts={rank: clock.drift for rank, clock in clocks.items()},
        clock_residual=left,
        sms=sms,
    )


def _files(path: Path) -> list[Path]:
    """Return the file itself, or the folder's files that are of the profiler."""
    if not path.is_dir():
        return [path]
    names = re.compile(r"\.json(\.gz)?$")
    return [f for f in sorted(path.iterdir()) if names.search(f.name) and _is_kineto(f)]


def _is_kineto(path: Path) -> bool:
    head = beginning(path, 1 << 18)
    return b"traceEvents" in head and b'"traincast"' not in head and bool(_MARKS.search(head))


def _clocks(
    ranks: Sequence[Linked], met: Sequence[Met], zero: int
) -> tuple[dict[int, ClockCorrection], float]:
    traces = {one.trace.rank: one.trace for one in ranks}
    ends = [
        {rank: (traces[rank].gpu[row].end - zero) / 1e9 for rank, row in one.members.items()}
        for one in met
        if len(one.members) > 1 and one.message.collective in _SIMULTANEOUS
    ]
    clocks = align(ends, list(traces))
    return clocks, residual(ends, clocks)


def _first(ranks: Sequence[AlignedRank]) -> float:
    """Return the recording's first start, in seconds of the common clock."""
    starts = [start for one in ranks for start in (one.gpu[0], one.host[0]) if len(start)]
    return min((float(start.min()) for start in starts), default=0.0)


def _kept(
    one: AlignedRank, selection: Selection, first: float, numbers: Sequence[int]
) -> BuiltRows:
    """Return the rows of the selected step that lie, at least in part, in the window."""
    low, high = (first + t for t in selection.window or (-np.inf, np.inf))
    step = _step(one, selection.step, numbers)
    within = instance(one, selection)

    def rows(
        spans: tuple[np.ndarray, np.ndarray], steps: Sequence[int], begun: Sequence[int]
    ) -> list[int]:
        inside = (spans[1] >= low) & (spans[0] <= high)
        if step is not None:
            inside &= np.array(steps, np.int64) == step
        if within:
            at = np.array(begun, np.int64)
            inside &= (at >= within[0]) & (at <= within[1])
        return np.flatnonzero(inside).tolist()

    of = one.of
    begun = [op.begun for op in of.host]
    return BuiltRows(rows(one.gpu, of.gpu_step, of.begun), rows(one.host, of.host_step, begun))


def _began(ranks: Sequence[AlignedRank], kept: Mapping[int, BuiltRows]) -> float:
    """Return the second of the common clock at which the built timeline is at 0."""
    of = [(one, kept[one.rank]) for one in ranks]
    spans = [s[0][rows] for one, k in of for s, rows in ((one.gpu, k.gpu), (one.host, k.host))]
    return min((float(start.min()) for start in spans if len(start)), default=0.0)


def _step(one: AlignedRank, number: int | None, numbers: Sequence[int]) -> int | None:
    if number is None:
        return None
    if number not in one.of.steps:
        there = ", ".join(map(str, one.of.steps)) or "none"
        raise InputError(f"rank {one.rank} has no step {number}; its steps are {there}")
    return numbers.index(number)


def _ops(ranks: Sequence[AlignedRank], kept: Mapping[int, BuiltRows]) -> dict[str, int]:
    rows = [(one, k) for one in ranks for k in kept[one.rank].gpu]
    linked = sum(one.of.launch[k] >= 0 for one, k in rows)
    if ranks and all(one.of.cpu_only for one in ranks):
        return {"cpu_ops": len(rows)}
    return {"gpu_ops": len(rows), "gpu_ops_linked": linked}


def _within(kept: Mapping[int, BuiltRows], met: Sequence[Met]) -> list[Met]:
    """Return the collectives that have a member in what is kept."""
    there = {rank: {*rows.gpu} for rank, rows in kept.items()}
    return [one for one in met if any(row in there[rank] for rank, row in one.members.items())]


def _counts(kept: Mapping[int, BuiltRows], met: Sequence[Met]) -> tuple[dict[str, int], list[str]]:
    """Return how many collectives there are and how many are complete, and what to warn about."""
    total, matched = complete(met, kept)
    said = []
    if matched < total:
        said.append(
            f"{total - matched:,} of {total:,} collectives lack a rank that was read; "
            "they end with those that are there"
        )
    return {"collectives": total, "collectives_matched": matched}, said


def _incomparable(lost: Sequence[int], shared: tuple[int, ...] | None, selection: Selection) -> str:
    """Say why the cost of stragglers is unknown; ``shared`` are steps that all ranks recorded."""
    unknown = "the cost of stragglers is unknown: "
    if lost:
        all_ = f"all ranks that were read may have waited for {steps.named('rank', lost)}"
        return f"{unknown}{all_}, of which there is no file"
    if shared is not None and selection.step is None:
        some = f"; --step {shared[0]} selects one that all recorded" if shared else ""
        return f"{unknown}ranks recorded different steps{some}"
    return ""


def _warnings(ranks: Sequence[AlignedRank], kept: Mapping[int, BuiltRows]) -> list[str]:
    out = []
    for one in ranks:
        gpu = kept[one.rank].gpu
        unlinked = sum(one.of.launch[k] < 0 for k in gpu)
        if one.of.cpu_only:
            out.append(f"rank {one.rank} has no GPU op: operators of its CPU are taken as kernels")
        elif not gpu:
            out.append(f"rank {one.rank} has no GPU op in what was read (was CUDA recorded?)")
        elif unlinked:
            out.append(
                f"rank {one.rank}: {unlinked:,} of {len(gpu):,} GPU ops were launched outside the "
                "window; they keep their recorded start"
            )
    return out
