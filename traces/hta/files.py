"""Writes one file per rank as PyTorch's profiler does, for HolisticTraceAnalysis and others.

Such readers rely on the following, which is therefore kept here (HTA 0.5.0):

- a kernel is communication when its name begins ``nccl`` and holds ``Kernel``, a copy when it
  begins ``Memcpy``, and computing otherwise; streams are numbers above 0;
- a kernel belongs to the step of the host's launch of the same correlation. A host that is not
  simulated runs ahead (:mod:`traces.hta.calls`), so that no gap of the GPU looks like its fault; -
  HTA rounds fractions of a microsecond inwards, which makes idle time between kernels that touch.
  So begin and end are given in whole microseconds; the exact seconds are in the args.

As in PyTorch's files, ``grid`` says how many blocks, each on an SM, a collective's kernel has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sim.graph import Communication, Copy, Fixed, Graph, Host, Longs, Work
from sim.machine.hardware import Machine
from sim.timeline import Timeline, dimension, kind
from traces.chrome import Event, Progress, Written, named, select, streams_of, write_events
from traces.hta.calls import CPU, GPU, Calls, slice_of
from traces.kineto.names import DIMENSIONS

KERNELS = {
    "all_reduce": ("ncclDevKernel_AllReduce", "allreduce"),
    "all_gather": ("ncclDevKernel_AllGather", "_allgather_base"),
    "reduce_scatter": ("ncclDevKernel_ReduceScatter", "_reduce_scatter_base"),
    "broadcast": ("ncclDevKernel_Broadcast", "broadcast"),
    "all_to_all": ("ncclDevKernel_SendRecv", "all_to_allv"),
    "ring_exchange": ("ncclDevKernel_SendRecv", ""),
    "p2p": ("ncclDevKernel_SendRecv", ""),
}
"""NCCL's name of the kernel, and PyTorch's of the collective (a p2p is send or recv)."""
COPIES = {
    "h2d": "Memcpy HtoD (Pinned -> Device)",
    "d2h": "Memcpy DtoH (Device -> Pinned)",
    "d2d": "Memcpy DtoD (Device -> Device)",
}
_DESCRIPTIONS = {of: name for name, of in reversed(DIMENSIONS.items()) if name.startswith("mesh_")}
_FIRST_STREAM = 7  # PyTorch's compute stream


def write_rank_files(
    timeline: Timeline,
    folder: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    progress: Progress | None = None,
    machine: Machine | None = None,
) -> Written:
    """Write ``rank{r}.json.gz`` into the folder for each rank, and return what was written.

    ``machine``, on which it was simulated, tells how many SMs communication takes.
    It selects ops as :func:`traces.own.perfetto.write` does. Raises InputError for a rank that was
    not simulated.
    """
    ops, written = select(timeline, ranks, window)
    world = _world_size(timeline.graph)
    done = 0
    for rank in written.ranks:
        mine = ops[timeline.graph.rank[ops] == rank]
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "numSms": machine.gpu_sms}] if machine else [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 0,
        }
        write_events(
            Path(folder) / f"rank{rank}.json.gz", head, _events(timeline, rank, mine, machine)
        )
        done += len(mine)
        if progress is not None:
            progress(done, len(ops))
    return written


def _world_size(graph: Graph) -> int:
    """Return the number of ranks of the job, as far as the graph names them."""
    named = [r for work in graph.works if isinstance(work, Communication) for r in work.ranks]
    return 1 + max(int(graph.rank.max(initial=0)), *named, 0)


def _events(timeline: Timeline, rank: int, ops: Longs, machine: Machine | None) -> Iterator[Event]:
    graph = timeline.graph
    streams = {row: n for n, (_, row) in enumerate(streams_of(timeline, ops), _FIRST_STREAM)}
    yield from named("process", f"rank {rank}: host", 0, CPU)
    yield from named("process", f"rank {rank}: GPU", 1, GPU)
    for row, number in streams.items():
        yield from named("thread", f"stream {number} {graph.streams[row]}", number, GPU, number)
    begin, end = _microseconds(timeline, ops)
    last = int(end.max(initial=0)) + 1
    yield slice_of("user_annotation", "ProfilerStep#0", CPU, 1, 0, last) | {"args": {}}
    calls = Calls(timeline, ops, begin, streams)
    as_kernel = [_kernel(graph, work, rank) for work in graph.works]
    grids = _grids(graph, machine)
    for k, i in enumerate(ops.tolist()):
        exact = {"start_s": float(timeline.start[i]), "end_s": float(timeline.end[i])}
        number, spans = streams[int(graph.stream[i])], (int(begin[k]), int(end[k] - begin[k]))
        if calls.is_host[k]:
            yield from calls.host(k)
            name = graph.names[graph.name[i]]
            yield slice_of("cpu_op", name, CPU, number, *spans) | {"args": exact}
            continue
        category, name, args = as_kernel[graph.work[i]]
        messages = _messages(graph, i, rank)
        yield from calls.before(k, messages)
        copies = category == "gpu_memcpy"
        yield from calls.launch(k, "cudaMemcpyAsync" if copies else "cudaLaunchKernel")
        event = slice_of(category, name or graph.names[graph.name[i]], GPU, number, *spans)
        link = {"device": 0, "stream": number, "correlation": k + 1, "External id": k + 1}
        args = {} if messages else args  # for a batch the profiler says nothing there
        yield event | {"args": {**link, **args, **exact, **grids[graph.work[i]]}}


def _grids(graph: Graph, machine: Machine | None) -> list[Event]:
    """Return, per work, the blocks of its kernel, where they are known."""
    if machine is None:
        return [{}] * len(graph.works)
    sms = machine.sms.tolist()
    return [{"grid": [n, 1, 1], "block": [512, 1, 1]} if n else {} for n in sms]


def _messages(graph: Graph, i: int, rank: int) -> list[Event]:
    """Return what the host says about each message of a batch; nothing for other ops."""
    works = [graph.works[row] for row in graph.part_work[graph.parts(i)].tolist()]
    said = [of for of in works if isinstance(of, Communication)]
    if len(said) == 1 and said[0].collective == "ring_exchange":
        at, ranks = said[0].ranks.index(rank), said[0].ranks
        pairs = [(rank, ranks[(at + 1) % len(ranks)]), (ranks[at - 1], rank)]
        return [_message(said[0], "", rank) | _pair(rank, *pair) for pair in pairs]
    if len(said) < 2:
        return []
    return [_message(of, "", rank) for of in said]


def _microseconds(timeline: Timeline, ops: Longs) -> tuple[Longs, Longs]:
    zero = timeline.start.min(initial=np.inf)
    start, end = (np.rint((of[ops] - zero) * 1e6) for of in (timeline.start, timeline.end))
    return start.astype(np.int64), end.astype(np.int64)


def _kernel(graph: Graph, work: Work, rank: int) -> tuple[str, str, Event]:
    """Return category, name ("" for the op's own) and args of the kernel that does this work."""
    match work:
        case Communication():
            kernel, torch_name = KERNELS.get(work.collective, ("ncclDevKernel_Generic", ""))
            return "kernel", kernel, _message(work, torch_name, rank)
        case Copy():
            return "gpu_memcpy", COPIES[work.direction], {"bytes": work.bytes}
        case Host():
            return "cpu_op", "", {}
        case Fixed() if dimension(work):
            return "kernel", "ncclDevKernel_Generic", {"Process Group Name": dimension(work)}
    return "kernel", "", {"kind": kind(work)}


def _message(work: Communication, torch_name: str, rank: int) -> Event:
    """Return the args that PyTorch copies from the collective to its kernel."""
    size = int(work.bytes)
    parts = {"all_gather": (len(work.ranks), 1), "reduce_scatter": (1, len(work.ranks))}
    into, out = parts.get(work.collective, (1, 1))
    args: Event = {
        "Collective name": torch_name,
        "In msg nelems": size // into,
        "Out msg nelems": size // out,
        "dtype": "Byte",
        "Group size": len(work.ranks),
        "Process Group Name": work.dimension,
        "Process Group Description": _DESCRIPTIONS.get(work.dimension, "undefined"),
        "Process Group Ranks": str(list(work.ranks)),
    }
    return args | (_pair(rank, *work.ranks) if work.collective == "p2p" else {})


def _pair(rank: int, source: int, target: int) -> Event:
    called = "send" if rank == source else "recv"
    return {"Collective name": called, "Src Rank": source, "Dst Rank": target}
