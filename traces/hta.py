"""One file per rank as PyTorch's profiler writes them, for HolisticTraceAnalysis and its like.

What such readers go by, and what is therefore kept here (HTA 0.5.0):

- a kernel is communication when its name begins ``nccl`` and holds ``Kernel``, a copy when it
  begins ``Memcpy``, and computing otherwise; streams are numbers above 0;
- a kernel belongs to a step by the launch of the same correlation on the host. The host is not
  simulated: a launch is written where the op before it on the stream begins, so that no gap of the
  GPU looks like the host's fault;
- HTA rounds fractions of a microsecond inwards, which makes idle time of kernels that touch. So
  begin and end are given in whole microseconds; the exact seconds are in the args.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sim.graph import Communication, Copy, Fixed, Graph, Host, Work
from sim.timeline import Timeline, dimension, kind
from traces.chrome import (
    Event,
    Progress,
    Rows,
    Written,
    named,
    select,
    streams_of,
    write_events,
)

KERNELS = {
    "all_reduce": ("ncclDevKernel_AllReduce", "allreduce"),
    "all_gather": ("ncclDevKernel_AllGather", "_allgather_base"),
    "reduce_scatter": ("ncclDevKernel_ReduceScatter", "_reduce_scatter_base"),
    "broadcast": ("ncclDevKernel_Broadcast", "broadcast"),
    "all_to_all": ("ncclDevKernel_SendRecv", "all_to_allv"),
    "ring_exchange": ("ncclDevKernel_SendRecv", ""),
    "p2p": ("ncclDevKernel_SendRecv", ""),
}
"""Name of NCCL's kernel, and what PyTorch calls the collective (a p2p is send or recv)."""
COPIES = {
    "h2d": "Memcpy HtoD (Pinned -> Device)",
    "d2h": "Memcpy DtoH (Device -> Pinned)",
    "d2d": "Memcpy DtoD (Device -> Device)",
}
_FIRST_STREAM = 7  # PyTorch's compute stream
_GPU, _CPU = 0, 1  # process ids


def write_rank_files(
    timeline: Timeline,
    folder: Path | str,
    *,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write ``rank{r}.json.gz`` into the folder for each rank; returns what was written.

    Selects as :func:`traces.perfetto.write` does. Raises ValueError for a rank that was not
    simulated.
    """
    ops, written = select(timeline, ranks, window)
    world = _world_size(timeline.graph)
    done = 0
    for rank in written.ranks:
        mine = ops[timeline.graph.rank[ops] == rank]
        head = {
            "schemaVersion": 1,
            "deviceProperties": [],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 0,
        }
        write_events(Path(folder) / f"rank{rank}.json.gz", head, _events(timeline, rank, mine))
        done += len(mine)
        if progress is not None:
            progress(done, len(ops))
    return written


def _world_size(graph: Graph) -> int:
    """Ranks of the job, as far as the graph names them."""
    named = [r for work in graph.works if isinstance(work, Communication) for r in work.ranks]
    return 1 + max(int(graph.rank.max(initial=0)), *named, 0)


def _events(timeline: Timeline, rank: int, ops: Rows) -> Iterator[Event]:
    graph = timeline.graph
    streams = {row: n for n, (_, row) in enumerate(streams_of(timeline, ops), _FIRST_STREAM)}
    yield from named("process", f"rank {rank}: host", 0, _CPU)
    yield from named("process", f"rank {rank}: GPU", 1, _GPU)
    for row, number in streams.items():
        yield from named("thread", f"stream {number} {graph.streams[row]}", number, _GPU, number)
    begin, end = _microseconds(timeline, ops)
    last = int(end.max(initial=0)) + 1
    yield _slice("user_annotation", "ProfilerStep#0", _CPU, 1, 0, last) | {"args": {}}
    launch = _launches(graph, ops, begin)
    as_kernel = [_kernel(graph, work, rank) for work in graph.works]
    for k, i in enumerate(ops.tolist()):
        category, name, args = as_kernel[graph.work[i]]
        number = streams[int(graph.stream[i])]
        link = {"correlation": k + 1, "External id": k + 1}
        exact = {"start_s": float(timeline.start[i]), "end_s": float(timeline.end[i])}
        name = name or graph.names[graph.name[i]]
        if category == "cpu_op":
            seconds = int(begin[k]), int(end[k] - begin[k])
            yield _slice(category, name, _CPU, number, *seconds) | {"args": exact}
            continue
        runtime = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
        yield _slice("cuda_runtime", runtime, _CPU, 1, int(launch[k]), 0) | {"args": link}
        event = _slice(category, name, _GPU, number, int(begin[k]), int(end[k] - begin[k]))
        yield event | {"args": {"device": 0, "stream": number, **link, **args, **exact}}


def _slice(category: str, name: str, pid: int, tid: int, ts: int, dur: int) -> Event:
    where = {"pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {"ph": "X", "cat": category, "name": name, **where}


def _microseconds(timeline: Timeline, ops: Rows) -> tuple[Rows, Rows]:
    zero = timeline.start.min(initial=np.inf)
    start, end = (np.rint((of[ops] - zero) * 1e6) for of in (timeline.start, timeline.end))
    return start.astype(np.int64), end.astype(np.int64)


def _launches(graph: Graph, ops: Rows, begin: Rows) -> Rows:
    """When each op is launched: as the one before it on its stream begins; the first at 0."""
    launch = np.zeros(len(ops), np.int64)
    for stream in np.unique(graph.stream[ops]):
        mine = np.flatnonzero(graph.stream[ops] == stream)
        launch[mine[1:]] = begin[mine[:-1]]
    return launch


def _kernel(graph: Graph, work: Work, rank: int) -> tuple[str, str, Event]:
    """Category, name ("" for the op's own) and args of the kernel that does this work."""
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
    """The args that PyTorch copies from the collective to its kernel."""
    size = int(work.bytes)
    parts = {"all_gather": (len(work.ranks), 1), "reduce_scatter": (1, len(work.ranks))}
    into, out = parts.get(work.collective, (1, 1))
    args: Event = {
        "Collective name": torch_name or ("send" if rank == work.ranks[0] else "recv"),
        "In msg nelems": size // into,
        "Out msg nelems": size // out,
        "dtype": "Byte",
        "Group size": len(work.ranks),
        "Process Group Name": work.dimension,
        "Process Group Ranks": str(list(work.ranks)),
    }
    if work.collective == "p2p":
        args |= {"Src Rank": work.ranks[0], "Dst Rank": work.ranks[1]}
    return args
