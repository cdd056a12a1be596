"""The memory of a GPU that a process takes besides the blocks of torch's allocator.

That is the CUDA context with its loaded kernels, cuBLAS's workspace (in fact a block of torch's
allocator, but of no category) and NCCL's buffers. Each communicator has as many channels as the
topology says, and each channel a connection to the next and to the previous rank of its ring (trees
use these too). There is one communicator per dimension of more than one rank, and one of all ranks.
NVLink SHARP's buffers are left out, and so are the connections to every rank that all-to-alls add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.builder.mesh import Mesh

AXES = ("tp", "cp", "ep", "dp", "pp")


def outside(mesh: Mesh, runtime: Mapping[str, float] | None) -> float:
    """Return the bytes on each GPU, by the constants of [gpu.runtime]; 0 if there are none."""
    if not runtime:
        return 0.0
    sizes = [n for n in (*map(mesh.degree, AXES), mesh.world) if n > 1]
    connections = sum(min(2, n - 1) for n in sizes)
    nccl = connections * runtime["channels"] * runtime["connection"]
    return float(runtime["context"] + runtime["workspace"] + nccl)


def besides(memory: Sequence[Mapping[str, Any]]) -> float:
    """Return the bytes of :func:`outside` from the ``memory`` of a summary; 0 if it has none.

    >>> besides([{"peak_bytes": 9.0, "device_bytes": 11.0}]), besides([{"peak_bytes": 9.0}])
    (2.0, 0.0)
    """
    first = memory[0] if memory else {}
    held = first.get("reserved_bytes", first.get("peak_bytes", 0.0))
    return float(first.get("device_bytes", held) - held)


def needed(entry: Mapping[str, Any]) -> float:
    """Return the bytes that a rank needs of its GPU, with context and NCCL where known.

    ``entry`` is one of ``memory`` in a summary.
    """
    return float(entry.get("device_bytes", entry["peak_bytes"]))
