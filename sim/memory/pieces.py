"""The tensors that make up the activations of a stage, for :mod:`sim.memory.reserved`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum

from sim.builder.activations import depths
from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.strategies import recompute
from sim.builder.strategies.embedding import embedding
from sim.model.layer import layer
from sim.model.operators import Operator, Share
from sim.strategies.mtp.joined import joined


def pieces(job: Job) -> dict[tuple[int, str], tuple[float, ...]]:
    """Return the bytes of the tensors that each stage keeps of one microbatch, in forward order.

    Keys are (stage, category). What an operator keeps is one tensor. So is what a layer keeps,
    unless recomputation leaves everything, or everything but the attention core.
    """
    part = share(job)
    found = {}
    for stage in range(job.stages):
        kept = _stage(job, part, stage)
        if tensors := tuple(size for of in kept for size in of if size):
            found[stage, "activations"] = tensors
    return found


def _stage(job: Job, part: Share, stage: int) -> Iterator[list[float]]:
    parts = [(number, layer(job.model, part, number)) for number in job.layers(stage)]
    plans = recompute.plans(job.recompute, parts, part)
    for (_, operators), plan in zip(parts, plans, strict=True):
        yield _tensors(operators, plan.kept)
    for number in depths(job.model, stage == job.stages - 1):
        operators = layer(job.model, part, number)
        yield [op.saved for op in joined(job.model, part, embedding(job.model, part)[0])]
        yield _tensors(operators, recompute.kept(operators, job.recompute, part))


def _tensors(operators: Sequence[Operator], kept: float) -> list[float]:
    for each in ([o.saved for o in operators], [o.saved for o in operators if not o.core]):
        if fsum(each) == kept:
            return each
    return [kept]
