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
from sim.model.sizes import Model

KEPT = "activations"  # the category of what layers keep


class Region(NamedTuple):
    """Operators of a layer that run again together. Positions are those in the layer."""

    again: Sequence[Operator]
    before: int  # position of the operator whose backward they precede
    until: int  # position of the operator whose backward needs the rebuilt bytes last
    size: float  # bytes rebuilt
    later: float  # those of the bytes that stay for weight gradients that come later


class OperatorBlock(NamedTuple):
    """Operators in forward order that allocate and free together."""

    operators: Sequence[Operator]
    layer: int = -1
    is_layer: bool = False  # whether they are a whole layer, which may run again
    category: str = ""  # category of the memory kept from its forward to its backward
    kept: float = 0.0  # bytes of that memory
    logits: tuple[float, float] = (0.0, 0.0)  # bytes of 16-bit logits, and of the fp32 copy
    copied: float = 0.0  # bytes of logits in the forward that the loss does not keep
    input_gradients: float = 0.0  # bytes of input gradients that its backward holds at once
    regions: Sequence[Region] = ()  # what runs again in its backward
    ahead: Sequence[tuple[int, Sequence[Operator]]] = ()  # layers that run again before it
    ahead_size: float = 0.0  # bytes that these rebuild


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


def layer_block(model: Model, part: Share, number: int) -> OperatorBlock:
    """Return a layer that keeps what all its operators save."""
    found = layer(model, part, number)
    return OperatorBlock(found, number, True, KEPT, fsum(op.saved for op in found))


def _layers(job: Job, part: Share, layers: Sequence[int]) -> list[OperatorBlock]:
    """Return the layers; input gradients matter while most is kept: in the backward's first."""
    found = [layer_block(job.model, part, i) for i in layers]
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
