"""Megatron's sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

Inside the tensor-parallel group, norms, dropouts and residuals are also split over the sequence. An
all-reduce becomes the reduce-scatter and the all-gather that it consists of. Column-parallel
linears keep only their part of the input and gather it again for the weight gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from schedules.input_error import InputError
from sim.builder.edge import Edge
from sim.builder.job import Job
from sim.model.operators import Share
from sim.model.sizes import BYTES, parameters
from sim.strategies.tensor.declare import sp
from sim.strategies.tensor.matrices import EDGES as TENSOR

EDGES: Mapping[str, Edge] = {
    **TENSOR,
    "column": Edge(before="all_gather", after_backward="reduce_scatter", again="all_gather"),
    "row": Edge(after="reduce_scatter", before_backward="all_gather"),
    "summed": Edge(after="all_reduce", before_backward="all_gather"),
    "projected": Edge(after="all_gather", after_backward="all_gather"),
}
"""The collectives g and its conjugate of the paper's figure 5."""


def split(share: Share, degree: int) -> Share:
    """Return the share of one of ``degree`` ranks with its part of the sequence.

    Raises InputError where the sequence cannot be divided evenly.
    """
    if share.sequence % degree:
        raise InputError(
            f"sequence = {share.sequence} cannot be split evenly by tp = {degree}, "
            "as sequence parallelism needs; choose another sequence or sp = false"
        )
    return replace(share, tokens=share.tokens // degree)


def replicated_gradient_bytes(job: Job, stage: int) -> float:
    """Return the bytes of gradients that a stage all-reduces over tp before the optimizer.

    The gradients of norms, row-parallel biases, routers and MLA's matrices into latents cover only
    the tokens of each rank. Without sequence parallelism every rank has seen all tokens, and there
    is nothing to reduce.
    """
    tp, layers = job.parallelism.tp, job.layers(stage)
    if not sp(job.parallelism) or tp == 1:
        return 0.0
    held = parameters(job.model, tp, layers, stage == 0, stage == job.stages - 1)
    replicated = held.norm + held.row_bias + held.replicated
    return float(replicated * BYTES[job.training.grad_dtype])
