"""The bytes of a checkpoint: weights and the optimizer's state, as a job shards them."""

from __future__ import annotations

from math import fsum

from schedules import flat
from sim.builder.job import Job
from sim.builder.strategies.update import kept
from sim.goodput.kinds import State
from sim.model.sizes import BYTES


def state(job: Job, gpus_per_node: int) -> State:
    """Return the bytes that ranks write and read, with the weights in ``training.dtype``.

    What several replicas hold, each writes a part of, as PyTorch's distributed checkpoints and
    Megatron-LM's fully parallel save do. A head that is a copy of another stage's embedding is not
    written again. After a failure each rank reads all that it holds.
    """
    weight, own = BYTES[job.training.dtype], kept(job.training)
    data, written, read = job.data, list[float](), list[float]()
    for steps in flat(job.plan):
        parts = [job.held(stage) for stage in sorted({step.stage for step in steps})]
        held, experts = (sum(getattr(of, name) for of in parts) for name in ("total", "expert"))
        copy = sum(of.head for of in parts if job.model.tied and not of.embedding)
        once = (held - copy - experts) / data.degree + experts / data.of_experts.degree
        written.append(once * (weight + own))
        read.append(data.weights(held, experts) * weight + data.share(held, experts) * own)
    ranks = job.mesh.world // len(written)
    node = min(gpus_per_node, job.mesh.world)
    return State(
        total=fsum(written) * ranks,
        node=max(written) * node,
        gpu=max(written),
        all_read=fsum(read) * ranks,
        node_reads=max(read) * node,
        gpu_reads=max(read),
    )
