"""What recipes are made of: tables with checked keys, and the smaller tables inside sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sim.model.precision import AdamState, Fp8

MOST_EXPERTS = 65_536
Count = Annotated[int, Field(ge=1, le=2**31)]
Counts = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e15)], ...], Field(strict=False, max_length=MOST_EXPERTS)
]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Module = Literal[
    "core_attn",
    "layernorm",
    "norm",
    "mla_up_proj",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
]
"""What of a layer can run again by itself; see :mod:`sim.builder.strategies.recompute`."""


class Section(BaseModel):
    """A table of the file: unknown keys and values of another type are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class FsdpTable(Section):
    """Fully sharded data parallelism: a layer's parameters are gathered when they are needed."""

    kind: Literal["fsdp1", "fsdp2", "yafsdp"] = "fsdp2"
    """fsdp1 (FullyShardedDataParallel), fsdp2 (fully_shard) or yafsdp"""
    wrap: Literal["layer", "model"] | Count = "layer"
    """what is gathered at once: a layer, the whole model, or so many layers"""
    shard: Count | None = None
    """ranks that share a copy of the parameters (HSDP); all of dp unless given"""
    reshard_after_forward: bool | Count | None = None
    """fsdp2: free parameters after the forward (true), keep them, or share them among so many"""
    replicate: Literal["each", "once"] | None = None
    """fsdp2 with shard: sum shards of gradients across copies in each microbatch, as unless given,
    or once, in the last (set_requires_all_reduce)"""
    prefetch: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """fsdp2: units gathered ahead; unless given 2 in the forward and 1 in the backward"""
    sharding: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
        | None
    ) = None
    """fsdp1: its ShardingStrategy, FULL_SHARD unless given"""
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "none"] | None = None
    """fsdp1: gather before or behind the kernels of the unit before, or behind its reduction"""
    forward_prefetch: bool | None = None
    """fsdp1: gather a unit earlier in the forward, false unless given"""
    limit_all_gathers: bool | None = None
    """fsdp1: at most two units gathered at a time in the forward, true unless given"""


class DeepSpeedTable(Section):
    """DeepSpeed's sizes for ZeRO-2 and 3, in parameters, with its names and defaults."""

    reduce_bucket_size: Annotated[float, Field(gt=0, le=1e18)] = 5e8
    """gradients reduced at once"""
    stage3_prefetch_bucket_size: Amount = 5e7
    """gathered ahead of the layer that begins"""
    stage3_max_live_parameters: Amount = 1e9
    """gathered at a time, at most, by prefetch"""
    stage3_max_reuse_distance: Amount = 1e9
    """kept for the backward where it needs them before so many others"""


class RecomputeTable(Section):
    """What runs again in the backward, and in which layers: whole layers, or modules of them."""

    modules: (
        Annotated[
            tuple[Literal[Module, "op"], ...],
            Field(strict=False, max_length=16),
        ]
        | None
    ) = None
    """of a layer, by Megatron-Core's names, or ["op"], torchtitan's; all of it unless given"""
    every: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """in each so-many-th layer of a stage alone"""
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """in this share of a stage's layers, evenly spread"""
    method: Literal["uniform", "block"] | None = None
    """uniform: from the input of every so many layers; block: the first so many of a stage"""
    layers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """of method: how many"""


class OffloadTable(Section):
    """What is kept in host memory."""

    activations: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of what layers keep that waits there from the forward to the backward"""
    by: Literal["layer", "stage"] = "layer"
    """what is copied at a time: a layer, or a whole stage through buffers that stay on the GPU"""
    optimizer: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of the parameters whose optimizer state stays there, and that the CPU updates"""
    overlap: bool = False
    """copy updated parameters back bucket by bucket, beside the update of the next"""


class StateTable(Section):
    """The numbers in which Adam keeps what it has of a parameter."""

    master: Literal["fp32", "fp16", "bf16", "remainder", "none"] = "fp32"
    """of the copy that is updated; none, or dtype's own: the weights are; remainder: what bf16
    lacks of fp32"""
    first: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """of the first moment"""
    second: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """of the second moment"""

    @property
    def state(self) -> AdamState:
        """The same for :mod:`sim.model.precision`."""
        return AdamState(self.master, self.first, self.second)


OWN = {
    "fsdp1": ("sharding", "backward_prefetch", "forward_prefetch", "limit_all_gathers"),
    "fsdp2": ("reshard_after_forward", "replicate", "prefetch"),
    "yafsdp": (),
}
"""Keys that only one kind of FSDP has."""


Positive = Annotated[float, Field(gt=0, le=1e6)]
Ratios = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=1_000_000)]
Sigma = Annotated[float, Field(gt=0, le=5)]
Rank = Annotated[int, Field(ge=0, lt=2**31)]


class PerturbationSection(Section):
    """One thing that is not as it should be: of compute, noise, lengths, bandwidth, stall."""

    rank: Rank | Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)] | None = None
    """where: a rank or a list of them; everywhere unless given"""
    compute: Positive | None = None
    """kernels take so many times as long: 1.3 is a slow GPU"""
    noise: Sigma | Ratios | None = None
    """kernels vary at random: sigma of a log-normal factor of mean 1, or factors to draw from"""
    lengths: Sigma | Ratios | None = None
    """microbatches differ in length: sigma likewise, or the length of each, as a factor"""
    link: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """which links are slow: nvlink, pcie, ib, fabric, or as `traincast topology` names them"""
    bandwidth: Positive | None = None
    """of those links, as a factor"""
    stall: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """one pause, as text with its unit: 50 ms"""
    step: Annotated[int, Field(ge=0, lt=1000)] | None = None
    """stall: at the beginning of this training step, from 0; 0 unless given"""
    at: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """stall: at this time of the run instead, such as 1.2 s"""
    stream: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """stall: the stream that pauses; compute unless given, or with simulation.host the CPU"""


class Fp8Table(Section):
    """Which numbers the linears of the layers multiply, and what travels and stays in them."""

    recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"] = "delayed"
    """how tensors are scaled: by earlier maxima (delayed), by theirs (tensorwise), row or block"""
    format: Literal["hybrid", "e4m3"] | None = None
    """of gradients e5m2 (hybrid) or e4m3; takes no other time"""
    params: bool = False
    """weights are kept and gathered in fp8 (Megatron's fp8_param_gather), and not copied to it"""
    gather: bool = True
    """all-gathers of sequence parallelism carry fp8, as Transformer Engine's do; false: dtype"""
    transpose: bool = True
    """transposed copies, as Hopper's tensor cores want them; Blackwell's do not: false"""
    amax: Literal["all", "tp", "none"] = "all"
    """delayed: maxima are reduced over all ranks of a stage, over tp, or not"""
    attention: bool = False
    """the attention core too; not simulated yet"""

    @property
    def precision(self) -> Fp8:
        """The same for :mod:`sim.model.precision`."""
        return Fp8(self.recipe, self.params, self.gather, self.transpose, self.amax)


class MlaSection(Section):
    """Widths of multi-head latent attention."""

    q_lora_rank: Annotated[int, Field(ge=0, le=2**31)] = 0
    """of the queries' latent; 0: queries come straight from the residual stream"""
    kv_lora_rank: Count
    """of the latent of keys and values"""
    qk_nope_head_dim: Count
    """of a query or key head, the part that is not rotated"""
    qk_rope_head_dim: Count
    """and the part that is"""
    v_head_dim: Count
    """of a value head"""


class LoadSection(Section):
    """How unevenly experts are used."""

    kind: Literal["balanced", "zipf", "dirichlet", "histogram"]
    """balanced, zipf (s), dirichlet (alpha; simulation.seed) or histogram (counts)"""
    s: Annotated[float, Field(ge=0, le=100)] | None = None
    """zipf: the e-th expert is used in proportion to e^-s"""
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """dirichlet: concentration, the larger the more even"""
    counts: Counts | None = None
    """histogram: what each expert is used, in any unit"""
