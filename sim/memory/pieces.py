"""The tensors that make up the activations of a stage, for :mod:`sim.memory.reserved`."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from sim.builder.blocks import KEPT, stage_blocks
from sim.builder.job import Job
from sim.model.operators import Operator


def pieces(job: Job) -> dict[tuple[int, str], tuple[float, ...]]:
    """Return the bytes of the tensors that each stage keeps of one microbatch, in forward order.

    Keys are (stage, category). What an operator keeps is one tensor. So is what a layer keeps,
    unless recomputation leaves everything, or everything but the attention core.
    """
    found = {}
    for stage in range(job.stages):
        blocks = stage_blocks(job, job.layers(stage), stage == 0, stage == job.stages - 1)
        kept = (_tensors(b.operators, b.kept) for b in blocks if b.category == KEPT)
        if tensors := tuple(size for of in kept for size in of if size):
            found[stage, KEPT] = tensors
    return found


def _tensors(operators: Sequence[Operator], kept: float) -> list[float]:
    for each in ([o.saved for o in operators], [o.saved for o in operators if not o.core]):
        if fsum(each) == kept:
            return each
    return [kept]
