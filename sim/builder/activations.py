"""How many bytes of activations a stage keeps for each microbatch in flight, by category.

``activations`` are those of the layers, counted as in Korthikanti et al. 2022 (arXiv:2205.05198):
the sum of what every operator keeps. What the paper leaves out has categories of its own:
``embedding`` (the mask of its dropout), ``logits`` (inputs of the final norm and the head, fp32
logits) and, only while a layer's backward runs, ``recompute`` (what is rebuilt of the layer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.strategies import recompute
from sim.builder.strategies.embedding import embedding, head
from sim.model.layer import layer
from sim.model.sizes import Model
from sim.strategies.mtp.joined import joined


def layer_bytes(job: Job, number: int = 0, ep_rank: int = 0) -> float:
    """Return the bytes that a layer keeps for one microbatch on one rank.

    The layer has this ``number`` and counts as one in which the job's recomputation applies. A
    GPT layer of 16-bit activations, unfused attention and dropout gives, with t = tp, none: s b h
    (34 + 5 a s / h), tensor parallel: s b h (10 + 24 / t + 5 a s / (h t)), with sequence
    parallelism too: s b h (34 + 5 a s / h) / t, selective: those without 5 a s / h, full: 2 s b h
    (/ t with sequence parallelism).
    """
    part = share(job, ep_rank=ep_rank)
    return recompute.kept(layer(job.model, part, number), job.recompute, part)


def stage_bytes(
    job: Job, layers: Sequence[int], first: bool, last: bool, ep_rank: int = 0
) -> Mapping[str, float]:
    """Return the bytes by category that a stage keeps for one microbatch on one rank."""
    model, part = job.model, share(job, ep_rank=ep_rank)
    parts = [(i, layer(model, part, i)) for i in layers]
    each = [plan.kept for plan in recompute.plans(job.recompute, parts, part)]
    for i in depths(model, last):
        each.append(recompute.kept(layer(model, part, i), job.recompute, part))
        each += [op.saved for op in joined(model, part, embedding(model, part)[0])]
    sizes = {"activations": fsum(each)}
    if first:
        sizes["embedding"] = fsum(op.saved for op in embedding(model, part))
    if last:
        sizes["logits"] = (1 + model.mtp) * fsum(op.saved for op in head(model, part))
    return {category: size for category, size in sizes.items() if size}


def depths(model: Model, last: bool) -> Sequence[int]:
    """Return the numbers of the layers of multi-token prediction on a stage."""
    return model.with_depths((), last)


def first_stage_bytes(job: Job, pipeline: int, chunks: int = 1) -> float:
    """Return the bytes of layers' activations on the first pipeline rank at the peak of 1F1B.

    That rank holds p microbatches of its L / p layers, and 1 + (p - 1) / (p v) times that when
    interleaved over v chunks (Korthikanti et al. 2022, section 4.2.3).
    """
    factor = 1 + (pipeline - 1) / (pipeline * chunks) if chunks > 1 else 1.0
    return job.model.layers * layer_bytes(job) * factor
