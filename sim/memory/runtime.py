"""What a process takes of a GPU's memory besides the blocks of torch's allocator.

That is the CUDA context with the kernels that were loaded, cuBLAS's workspace (torch's own block in
fact, which no category has) and NCCL's buffers: for each communicator as many channels as the
topology says, each with a connection to the next and one to the previous rank of its ring (which
trees use too). Communicators are one per dimension that has more than one rank, and that of all
ranks. NVLink SHARP's buffers are left out, and what all-to-alls add: connections to every rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.builder.mesh import Mesh

AXES = ("tp", "cp", "ep", "dp", "pp")


def outside(mesh: Mesh, runtime: Mapping[str, float] | None) -> float:
    """Bytes on each GPU, by the constants of the topology's [gpu.runtime]; 0 without them."""
    if not runtime:
        return 0.0
    sizes = [n for n in (*map(mesh.degree, AXES), mesh.world) if n > 1]
    connections = sum(min(2, n - 1) for n in sizes)
    nccl = connections * runtime["channels"] * runtime["connection"]
    return float(runtime["context"] + runtime["workspace"] + nccl)
