"""The keys of sharded data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from sim.keys.section import Section, unit
from sim.recipe.sections import Amount, Count

if TYPE_CHECKING:
    from sim.recipe.recipe import ParallelismSection


class FsdpTable(Section):
    """Fully sharded data parallelism: a layer's parameters are gathered when they are needed."""

    kind: Literal["fsdp1", "fsdp2", "yafsdp"] = "fsdp2"
    """implementation: fsdp1 (FullyShardedDataParallel), fsdp2 (fully_shard) or yafsdp"""
    wrap: Literal["layer", "model"] | Count = "layer"
    """what is gathered at once: a layer, the whole model, or this number of layers"""
    shard: Count | None = None
    """number of ranks that share a copy of the parameters (HSDP); default: all of dp"""
    reshard_after_forward: bool | Count | None = None
    """fsdp2: after the forward free parameters (true), keep them (false), or split them over this
    number of ranks"""
    replicate: Literal["each", "once"] | None = None
    """fsdp2 with shard: when gradient shards are summed across copies: each microbatch (each), or
    only in the last (once, set_requires_all_reduce); default: each"""
    prefetch: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """fsdp2: number of units gathered ahead; default: 2 in the forward and 1 in the backward"""
    copy_engines: bool | None = None
    """fsdp2: whether copy engines gather parameters inside a node, which hold no SM (symmetric
    memory and NCCL's zero-CTA policy); between nodes NCCL does. Default: false"""
    sharding: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
        | None
    ) = None
    """fsdp1: its ShardingStrategy; default: FULL_SHARD"""
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "none"] | None = None
    """fsdp1: gather a unit before (BACKWARD_PRE) or after (BACKWARD_POST) the previous unit's
    kernels, or after its reduction (none)"""
    forward_prefetch: bool | None = None
    """fsdp1: whether the forward gathers one unit earlier; default: false"""
    limit_all_gathers: bool | None = None
    """fsdp1: whether at most two units are gathered at a time in the forward; default: true"""


class DeepSpeedTable(Section):
    """DeepSpeed's sizes for ZeRO-2 and 3, in parameters, with its names and defaults."""

    reduce_bucket_size: Annotated[float, Field(gt=0, le=1e18), unit("parameters")] = 5e8
    """gradients that are reduced at once, in parameters"""
    stage3_prefetch_bucket_size: Annotated[Amount, unit("parameters")] = 5e7
    """parameters that are gathered ahead of the layer that begins"""
    stage3_max_live_parameters: Annotated[Amount, unit("parameters")] = 1e9
    """most parameters that prefetch keeps gathered at a time"""
    stage3_max_reuse_distance: Annotated[Amount, unit("parameters")] = 1e9
    """gathered parameters stay for the backward if it needs them before this number of others"""


OWN = {
    "fsdp1": ("sharding", "backward_prefetch", "forward_prefetch", "limit_all_gathers"),
    "fsdp2": ("reshard_after_forward", "replicate", "prefetch", "copy_engines"),
    "yafsdp": (),
}
"""Keys that only one kind of FSDP has."""


class Keys(Section):
    """The keys of [parallelism]."""

    fsdp: FsdpTable | None = None
    """fully sharded data parallel: { kind = "fsdp2", reshard_after_forward = true, ... }"""
    deepspeed: DeepSpeedTable | None = None
    """DeepSpeed's sizes for zero 2 and 3: { stage3_prefetch_bucket_size = 5e7, ... }"""
    accumulate: bool | None = None
    """whether whole gradients are kept until the last microbatch (no_sync); default: true only for
    fsdp2 with pp > 1"""


def own(p: object) -> Keys:
    """Return the section [parallelism] as one that has these keys."""
    return cast("Keys", p)


def asked(p: ParallelismSection) -> str:
    """Return the key by which replicas share gradients or parameters; empty if none does."""
    if own(p).fsdp:
        return "parallelism.fsdp"
    return f"parallelism.zero = {p.zero}" if p.zero > 1 else ""
