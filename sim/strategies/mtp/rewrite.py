"""What multi-token prediction does to a job: its last stage has depths before the head."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from sim.builder.backward_memory import input_gradients
from sim.builder.blocks import KEPT, OperatorBlock, layer_block
from sim.builder.job import Job
from sim.builder.strategies.embedding import embedding
from sim.model.operators import Share
from sim.strategies.mtp.declare import depths
from sim.strategies.mtp.joined import joined


def blocks(
    job: Job, part: Share, found: Sequence[OperatorBlock], last: bool
) -> Sequence[OperatorBlock]:
    """Return the blocks of a last stage with the depths; the main head comes after theirs.

    Input gradients matter while most is kept: in the last depth.
    """
    model, count = job.model, depths(job.model)
    if not (last and count):
        return found
    *before, head = (block._replace(input_gradients=0.0) for block in found)
    for number in range(model.layers, model.layers + count):
        before += _depth(job, part, number)
    peak = input_gradients(model, part, before[-1].layer)
    return [*before[:-1], before[-1]._replace(input_gradients=peak), *[head] * (1 + count)]


def _depth(job: Job, part: Share, number: int) -> list[OperatorBlock]:
    """Return what joins the two inputs of a depth, and its layer."""
    start = joined(job.model, part, embedding(job.model, part)[0])
    kept = fsum(op.saved for op in start)
    before = OperatorBlock(start, number, category=KEPT, kept=kept)
    return [before, layer_block(job.model, part, number)]
