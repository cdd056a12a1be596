"""The CPU that launches kernels: one op on each rank's stream "host" for every op of its GPU.

A training loop launches its kernels one by one in program order and runs ahead of the GPU. Where
kernels are shorter than it takes to launch them, the GPU waits for the next launch. After a call
that waits for the GPU (``torch.cuda.synchronize``, a p2p that is waited for, ``.item()``) the CPU
is no longer ahead. A launch never lets an op start earlier, so all other relations stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sim.graph import Bools, Fixed, Floats, Graph, Ints, Longs, offsets, owners

HOST = "host"


def launched(graph: Graph, launch: float | Floats, waited: Bools) -> Graph:
    """Return ``graph`` with an op of ``launch`` seconds on the host before every op.

    ``launch`` may have the seconds of each op, shape (n,). Every op waits for its launch.
    ``waited`` (n,) tells whether the host waits for an op's end before it launches the rank's next
    op. Memory is allocated and freed when an op is launched, as in PyTorch's allocator. Ops keep
    their order; op i becomes op 2 i + 1, and op 2 i launches it.
    """
    n = len(graph)
    column: dict[str, Any] = {
        name: np.repeat(getattr(graph, name), 2)
        for name in ("rank", "phase", "stage", "microbatch", "layer", "step")
    }
    waits = _waits(graph, waited)
    lengths, row = np.unique(np.broadcast_to(launch, (n,)), return_inverse=True)
    name, work, stream = (np.repeat(getattr(graph, key), 2) for key in ("name", "work", "stream"))
    name[::2], work[::2], stream[::2] = len(graph.names), row, len(graph.streams)
    work[::2] += len(graph.works)
    lag = np.zeros(2 * n)
    lag[1::2] = graph.lag
    return replace(
        graph,
        names=(*graph.names, "launch"),
        works=(*graph.works, *(Fixed(length, HOST) for length in lengths.tolist())),
        streams=(*graph.streams, HOST),
        name=name,
        work=work,
        stream=stream,
        lag=lag if lag.any() else np.broadcast_to(np.float64(0.0), (2 * n,)),
        part_start=_spread(graph.part_start),
        **column,
        **waits,
        **_memory(graph),
    )


def launches(graph: Graph, ops: Longs) -> Longs:
    """Return the host op that launches each of these ops of a launched graph, shape of ``ops``."""
    return graph.wait_on[graph.wait_start[ops + 1] - 1].astype(np.int64)


def waited(graph: Graph) -> Bools:
    """Return whether Megatron-LM's host waits for each op, shape (n,).

    It waits for batched exchanges and for the norm of the gradients: ``batch_p2p_sync``
    synchronises after every ``batch_isend_irecv`` (p2p_communication.py), and the norm is read with
    ``.item()`` (clip_grads.py).
    """
    names = np.array([name.startswith("grad_norm") for name in graph.names])
    streams = np.array([stream == "pp" for stream in graph.streams])
    out: Bools = names[graph.name] | streams[graph.stream]
    return out


def _waits(graph: Graph, waited: Bools) -> dict[str, Any]:
    """Let each op wait for its launch, and the launch after a waited op for that op."""
    n = len(graph)
    synced = np.flatnonzero(waited[:-1] & (graph.rank[:-1] == graph.rank[1:]))
    count = np.zeros(2 * n, np.int64)
    count[1::2] = np.diff(graph.wait_start) + 1
    count[2 * (synced + 1)] = 1
    start = offsets(count)
    on = np.empty(start[-1], np.int32)
    lag = np.zeros(start[-1])
    old = np.arange(len(graph.wait_on))
    owner = owners(graph.wait_start)
    row = start[2 * owner + 1] + old - graph.wait_start[owner]
    on[row], lag[row] = 2 * graph.wait_on + 1, graph.wait_lag
    on[start[2::2] - 1] = 2 * np.arange(n)
    on[start[2 * (synced + 1)]] = 2 * synced + 1
    return {"wait_start": start, "wait_on": on, "wait_lag": lag}


def _spread(start: Ints) -> Ints:
    """Return where rows begin when every other op, which is a launch, has none."""
    counts = np.zeros(2 * (len(start) - 1), np.int64)
    counts[1::2] = np.diff(start)
    return offsets(counts)


def _memory(graph: Graph) -> dict[str, Any]:
    """Move what each op allocates and frees to its launch."""
    counts = np.zeros(2 * len(graph), np.int64)
    counts[::2] = np.diff(graph.memory_start)
    return {"memory_start": offsets(counts)}
