"""Tensor parallelism (Megatron-LM, arXiv:1909.08053): a layer's matrices split over a group.

Heads, MLP columns and vocabulary rows are divided; norms, dropouts and residuals are repeated on
every rank. Each pair of a column- and a row-parallel linear costs one all-reduce each way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schedules.input_error import InputError
from sim.builder.edge import Edge
from sim.builder.job import Job
from sim.model.operators import Share
from sim.model.sizes import BYTES, with_further

EDGES: Mapping[str, Edge] = {
    "column": Edge(after_backward="all_reduce"),
    "row": Edge(after="all_reduce"),
    "summed": Edge(after="all_reduce"),
    "vocabulary": Edge(after="all_reduce"),
    "projected": Edge(after="all_gather"),
}
"""The collectives f and g of Megatron-LM's figure 3, and partial maxima and sums over a split
vocabulary."""


def split(share: Share, degree: int) -> Share:
    """Return the share of one of ``degree`` ranks; too few KV heads are replicated.

    Raises InputError where a size cannot be divided evenly.

    >>> from sim.model.operators import Share
    >>> one = Share(1, 8, 64, 8, 8, 2, 8, 256, 512, "bf16", 2, 4)
    >>> four = split(one, 4)
    >>> four.heads, four.kv_heads, four.ffn, four.vocab, four.tokens
    (2, 1, 64, 128, 8)
    """
    few, many = sorted((share.kv_heads, degree))
    for what, size, by in (
        ("heads", share.heads, degree),
        ("ffn", share.ffn, degree),
        ("the larger of kv_heads and tp", many, few),
    ):
        if size % by:
            raise InputError(f"{what} = {size} cannot be split evenly by {by}; choose another tp")
    return replace(
        share,
        heads=share.heads // degree,
        kv_heads=max(1, share.kv_heads // degree),
        ffn=share.ffn // degree,
        vocab=share.vocab // degree,
    )


def kv_copies(job: Job) -> int:
    """Return how many tensor-parallel ranks hold the same KV heads."""
    return max(1, job.parallelism.tp // job.model.kv_heads)


def replicated_kv_bytes(job: Job, stages: Sequence[int]) -> float:
    """Return the bytes of some stages' K and V gradients that ranks with equal KV heads all-reduce.

    With more ranks than KV heads several ranks hold each head, and each has only seen the gradient
    of its own query heads.
    """
    model, last = job.model, job.stages - 1
    if job.parallelism.tp <= model.kv_heads:
        return 0.0
    layers = sum(len(with_further(model, job.layers(k), k == last)) for k in stages)
    width = 2 * model.head_dim
    return layers * float(width * (model.hidden + model.qkv_bias) * BYTES[job.training.grad_dtype])
