"""Expert parallelism (GShard, arXiv:2006.16668): each rank of a group holds some of the experts.

Every rank routes its own tokens. An all-to-all sends a copy of each token to the ranks of its
experts and another one brings the outputs back; the backward mirrors both. Ranks hold experts in
blocks. An expert may also be split over ``etp`` ranks, which gather each other's tokens before it
and reduce-scatter its partial outputs after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from schedules.input_error import InputError
from sim.builder.edge import Edge
from sim.builder.job import Job
from sim.model.operators import Share
from sim.model.routing import tokens
from sim.model.sizes import Model
from sim.strategies.tensor.declare import sp

_AROUND: Mapping[str, Edge] = {
    "dispatch": Edge(after="all_to_all", before_backward="all_to_all", axis="ep"),
    "combine": Edge(before="all_to_all", after_backward="all_to_all", axis="ep"),
}
_INSIDE: Mapping[str, Edge] = {
    "expert_column": Edge(before="all_gather", after_backward="reduce_scatter", axis="etp"),
    "expert_row": Edge(after="reduce_scatter", before_backward="all_gather", axis="etp"),
}
"""The collectives around experts that are split themselves; what they gather is kept for the weight
gradient."""


def edges(job: Job) -> Mapping[str, Edge]:
    """Return the collectives around experts; a degree of 1 has none."""
    p = job.parallelism
    return {**(_AROUND if p.ep > 1 else {}), **(_INSIDE if p.etp > 1 else {})}


def share(part: Share, job: Job, cp_rank: int, ep_rank: int) -> Share:
    """Return the share of one rank of a group whose ranks all route the same number of tokens.

    An all-to-all is over when its most loaded rank has everything that it is sent. Its buffer is as
    large as if all ranks were sent that much: k T for a balanced load, with T tokens on each rank.
    Raises InputError where a size cannot be divided evenly.
    """
    model, p = job.model, job.parallelism
    if not model.experts:
        return part
    for what, size, degree in (
        ("experts", model.experts, p.ep),
        ("expert_ffn", model.expert_ffn, p.etp),
        ("shared_experts x expert_ffn", model.shared_experts * model.expert_ffn, p.tp),
    ):
        if size % degree:
            raise InputError(f"{what} = {size} cannot be split evenly by {degree}")
    taken = _taken(model, part.tokens, p.ep, p.etp)
    return replace(
        part,
        shared_ffn=model.shared_experts * model.expert_ffn // p.tp,
        expert_ffn=model.expert_ffn // p.etp,
        routed=taken[ep_rank],
        copies=sum(map(sum, taken)) / (p.ep * p.etp),
        exchanged=max(map(sum, taken)) / p.etp,
    )


@cache
def _taken(model: Model, own: int, ep: int, etp: int) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each expert of each rank along ep, if all ranks route ``own`` tokens."""
    local, copies = model.experts // ep, model.topk * own * ep * etp
    taken = tokens(model.load, model.experts, copies, model.capacity_factor)
    return tuple(taken[i : i + local] for i in range(0, model.experts, local))


def twin(job: Job, axis: str, at: int) -> int:
    """Return the first rank along ep with the same tokens to process: itself, or of all the first.

    Ranks that share some, but not all, count as different.
    """
    p, model = job.parallelism, job.model
    if axis != "ep" or not at or not model.experts:
        return 0
    own = job.training.micro_batch * model.sequence // p.cp // (p.tp if sp(p) else 1)
    return at if len(set(_taken(model, own, p.ep, p.etp))) > 1 else 0


def cuts(job: Job, stride: Mapping[str, int]) -> Sequence[int]:
    """Return where the groups of etp and of ep end."""
    p = job.parallelism
    return [p.etp, p.etp * p.ep] if p.ep * p.etp > 1 else []
