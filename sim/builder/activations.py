"""How many bytes of activations a stage keeps for each microbatch in flight, by category.

``activations`` are those of the layers, counted as in Korthikanti et al. 2022 (arXiv:2205.05198):
the sum of what every operator keeps. What the paper leaves out has categories of its own:
``embedding`` (the mask of its dropout), ``logits`` (inputs of the final norm and the head, fp32
logits) and, only while a layer's backward runs, ``recompute`` (what is rebuilt of the layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from sim.builder.blocks import KEPT, stage_blocks
from sim.builder.job import Job


def layer_bytes(job: Job, number: int = 0, ep_rank: int = 0) -> float:
    """Return the bytes that a layer keeps for one microbatch on one rank.

    The layer has this ``number`` and is alone in its stage. A GPT layer of 16-bit activations,
    unfused attention and dropout gives, with t = tp, none: s b h (34 + 5 a s / h), tensor parallel:
    s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism too: s b h (34 + 5 a s / h) / t,
    selective: those without 5 a s / h, full: 2 s b h (/ t with sequence parallelism).
    """
    return stage_bytes(job, (number,), False, False, ep_rank).get(KEPT, 0.0)


def stage_bytes(
    job: Job, layers: Sequence[int], first: bool, last: bool, ep_rank: int = 0
) -> Mapping[str, float]:
    """Return the bytes by category that a stage keeps for one microbatch on one rank."""
    found = [b for b in stage_blocks(job, layers, first, last, ep_rank=ep_rank) if b.kept]
    names = dict.fromkeys(block.category for block in found)
    return {name: fsum(b.kept for b in found if b.category == name) for name in names}


def first_stage_bytes(job: Job, pipeline: int, chunks: int = 1) -> float:
    """Return the bytes of layers' activations on the first pipeline rank at the peak of 1F1B.

    That rank holds p microbatches of its L / p layers, and 1 + (p - 1) / (p v) times that when
    interleaved over v chunks (Korthikanti et al. 2022, section 4.2.3).
    """
    factor = 1 + (pipeline - 1) / (pipeline * chunks) if chunks > 1 else 1.0
    return job.model.layers * layer_bytes(job) * factor
