"""The operators of a stage in blocks: the embedding, each layer, and the head with the loss."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from sim import strategies
from sim.builder.backward_memory import input_gradients
from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.strategies.embedding import LOGIT, embedding, head, logits
from sim.model.layer import layer
from sim.model.operators import Operator, Share
from sim.strategies.recompute import plans as recompute

NOTHING = recompute.Plan(0.0)
KEPT = "activations"  # the category of what layers keep


class OperatorBlock(NamedTuple):
    """Operators in forward order that allocate and free together."""

    operators: Sequence[Operator]
    layer: int = -1
    plan: recompute.Plan = NOTHING
    category: str = ""  # category of the memory kept from its forward to its backward
    kept: float = 0.0  # bytes of that memory
    logits: tuple[float, float] = (0.0, 0.0)  # bytes of 16-bit logits, and of the fp32 copy
    copied: float = 0.0  # bytes of logits in the forward that the loss does not keep
    input_gradients: float = 0.0  # bytes of input gradients that its backward holds at once


def stage_blocks(
    job: Job, layers: Sequence[int], first: bool, last: bool, *, cp_rank: int = 0, ep_rank: int = 0
) -> Sequence[OperatorBlock]:
    """Return the blocks of a stage with these layers (their numbers), as features change them."""
    part = share(job, cp_rank=cp_rank, ep_rank=ep_rank)
    found: Sequence[OperatorBlock] = [
        *([_embedding(job, part)] if first else ()),
        *_layers(job, part, layers),
        *([_head(job, part)] if last else ()),
    ]
    for change in strategies.hooks("blocks"):
        found = change(job, part, found, last)
    return found


def _embedding(job: Job, part: Share) -> OperatorBlock:
    found = embedding(job.model, part)
    return OperatorBlock(found, category="embedding", kept=fsum(op.saved for op in found))


def _layers(job: Job, part: Share, layers: Sequence[int]) -> list[OperatorBlock]:
    """Return the layers; input gradients matter while most is kept: in the backward's first."""
    parts = [(i, layer(job.model, part, i)) for i in layers]
    plans = recompute.plans(job.recompute, parts, part)
    found = [
        OperatorBlock(ops, i, plan, KEPT, plan.kept)
        for (i, ops), plan in zip(parts, plans, strict=True)
    ]
    if found:
        peak = input_gradients(job.model, part, found[-1].layer)
        found[-1] = found[-1]._replace(input_gradients=peak)
    return found


def _head(job: Job, part: Share) -> OperatorBlock:
    model, found = job.model, head(job.model, part)
    wide = part.element < LOGIT and model.kernels.loss != "fused"
    both = logits(part) if wide else (0.0, 0.0)
    copied = both[0] if model.fused else both[1]  # 16-bit logits, or fp32 minus their maximum
    kept = fsum(op.saved for op in found)
    return OperatorBlock(found, category="logits", kept=kept, logits=both, copied=copied)
