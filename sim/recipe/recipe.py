"""The keys that a recipe has, their types, and what each means.

There is one class per section of the TOML file. Each value is checked here on its own;
:mod:`sim.recipe.recipe_file` checks what several values have to agree on.
"""

from collections.abc import Mapping
from types import new_class
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

import schedules
from schedules.times import Seconds
from sim import strategies
from sim.keys.section import Section, unit
from sim.recipe.goodput_sections import CheckpointSection, FailuresSection
from sim.recipe.sections import (
    MOST_EXPERTS,
    Count,
    Gpus,
    KernelsTable,
    LoadSection,
    MlaSection,
    PerturbationSection,
    RecurrenceSection,
    StateTable,
)

if TYPE_CHECKING:
    from sim.model.sizes import Model

MOST_LAYERS = 10_000
MOST_SAMPLES = 1_000_000
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
AnyLayers = Annotated[int, Field(ge=0, le=MOST_LAYERS)]
Split = Annotated[tuple[AnyLayers, ...], Field(strict=False, max_length=MOST_LAYERS)]
Blocks = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1000)], ...],
    Field(strict=False, min_length=1, max_length=8),
]
Kinds = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=100)], ...],
    Field(strict=False, min_length=1, max_length=MOST_LAYERS),
]
Experts = Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Switch = bool
Dtype = Literal["bf16", "fp16", "fp32"]
RecordedHost = Annotated[str, Field(pattern=r"(/|\.json$)", max_length=4096)]
Table = dict[str, Any]

NOT_YET: dict[str, tuple[object, ...]] = {
    "schedule.deferred_wgrad": (False,),
    "training.optimizer": ("adam", "sgd"),
    "simulation.costs": ("fit",),
}
"""Keys that are understood but not simulated yet, and their values that are simulated."""


S = TypeVar("S", bound=Section)


def with_features(section: type[S]) -> type[S]:
    """Return a section with the keys that features declare for it (:mod:`sim.strategies`)."""
    name = section.__name__.removesuffix("Section").lower()
    own = tuple(keys[name] for keys in strategies.declared("KEYS") if name in keys)
    about = {"__module__": section.__module__, "__doc__": section.__doc__}
    made: type[S] = new_class(section.__name__, (*own, section), {}, lambda of: of.update(about))
    return made if own else section


@with_features
class ModelSection(Section):
    """The model: a preset, a Hugging Face config.json, or numbers, which override the other two."""

    preset: Name | None = None
    """name of a built-in model; `traincast list models` lists them"""
    hf: Name | None = None
    """path of a Hugging Face model's config.json, relative to this file; only its language model is
    read"""
    name: Name | None = None
    """name of the model in outputs"""
    layers: Annotated[Layers, unit("layers")] | None = None
    """number of transformer layers"""
    hidden: Count | None = None
    """width of the residual stream, in elements"""
    heads: Count | None = None
    """number of query heads"""
    kv_heads: Count | None = None
    """number of key and value heads; default: heads"""
    head_dim: Count | None = None
    """width of a head, in elements; default: hidden / heads"""
    ffn: Count | None = None
    """inner width of the MLP, in elements; default: 4 hidden, and required if gated"""
    gated: Switch | None = None
    """whether the MLP has a gate beside its first linear, such as SwiGLU"""
    vocab: Annotated[int, Field(ge=0, le=2**31), unit("tokens")] | None = None
    """tokens in the vocabulary; 0: only the layers, without embedding, head and loss"""
    tied: Switch | None = None
    """whether the head uses the embedding's weights"""
    norm: Literal["layer", "rms", "batch", "sync_batch"] | None = None
    """layer (LayerNorm) or rms (RMSNorm); with blocks: batch or sync_batch (SyncBatchNorm)"""
    attention: Literal["flash", "sdpa", "triton", "flash2", "flash3", "cudnn", "unfused"] | None = (
        None
    )
    """flash (one kernel, no s x s matrix in memory; the one that Transformer Engine takes on that
    GPU: FlashAttention-2 on A100, cuDNN's on H100 and later), sdpa (the one that PyTorch took until
    2.10: FlashAttention-2 up to H200, cuDNN's on B200), a kernel by name: triton (and the first
    FlashAttention), flash2, flash3 (FlashAttention-2 and -3), cudnn; or unfused. Default: the
    preset's, else sdpa with parallelism.fsdp and flash without"""
    activation: Literal["gelu", "silu", "relu2"] | None = None
    """activation of the MLP: gelu, silu or relu2 (squared ReLU)"""
    fused: Switch | Literal["except_gate"] | None = None
    """true: activation and gate are one kernel and the loss works in place; false: both are as in
    eager PyTorch; "except_gate": only activation and gate are"""
    kernels: KernelsTable | None = None
    """which kernels run where others run one fused kernel: { norm = "eager", loss = "torch", ... };
    default: one fused kernel each way, and Megatron-LM's loss"""
    qkv_bias: Switch | None = None
    """whether the QKV linear has a bias"""
    bias: Switch | None = None
    """whether the other linears have a bias"""
    position: Literal["learned", "rope", "none"] | None = None
    """position embedding: learned (a table), rope (rotary) or none"""
    positions: Annotated[int, Field(ge=0, le=2**31)] | None = None
    """rows of the learned position table; default: sequence"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """share of activations that dropout sets to zero; 0 runs no dropout kernels"""
    vocab_padding: Count | None = None
    """the vocabulary is padded to a multiple of this times tp, as in Megatron-LM; 1: not padded"""
    sequence: Annotated[Count, unit("tokens")] | None = None
    """tokens per sample"""
    mla: MlaSection | None = None
    """widths of multi-head latent attention, which replaces ordinary attention"""
    pattern: Kinds | None = None
    """what mixes tokens, layer by layer, over and over: ["sliding", "sliding", "full"]; a kind of
    `traincast list layers`, or none; default: full in every layer"""
    feed_forward: Kinds | None = None
    """what follows in each layer, likewise: dense, experts or none; default: experts in every layer
    but the first dense_layers, without model.experts dense"""
    recurrence: RecurrenceSection | None = None
    """sizes of layers with a state instead of keys, such as mamba2 and gated_delta"""
    window: Annotated[Count, unit("tokens")] | None = None
    """tokens up to its own that a token of sliding attention meets, or of a chunk (chunked)"""
    sinks: Switch | None = None
    """whether attention has a learned logit per head beside those of the keys, as in gpt-oss"""
    qk_norm: Literal["head", "whole"] | None = None
    """RMS norms of queries and keys: of each head, or of all heads together; default: none"""
    norm_place: Literal["before", "after", "both"] | None = None
    """where attention and MLP have a norm: before (default), after (OLMo 2) or both (Gemma 3)"""
    output_gate: Switch | None = None
    """whether attention's output is multiplied by a gate as wide, as in Qwen3-Next"""
    shared_gate: Switch | None = None
    """whether the shared experts' output is multiplied by a gate per token, as in Qwen3-Next"""
    experts: Experts | None = None
    """number of routed experts of a mixture; without it every layer has one MLP"""
    topk: Experts | None = None
    """number of experts that each token is sent to"""
    expert_ffn: Count | None = None
    """inner width of an expert, in elements; default: ffn"""
    shared_experts: Annotated[int, Field(ge=0, le=MOST_EXPERTS)] | None = None
    """number of experts that see every token"""
    dense_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    """number of layers without experts, at the start of the model"""
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """most tokens that an expert takes, as a multiple of its fair share; the rest are dropped"""
    load: LoadSection | None = None
    """how unevenly tokens are spread over the experts"""
    blocks: Blocks | None = None
    """number of bottleneck blocks in each group of a residual network, which replaces the
    transformer"""
    image: Annotated[int, Field(ge=1, le=65_536), unit("pixels")] | None = None
    """rows, and columns, of an image in pixels; default: 224"""
    classes: Count | None = None
    """number of classes of images; default: 1000"""


class ClusterSection(Section):
    """The machine that the job runs on."""

    topology: Name
    """name of a built-in topology (`traincast list topologies`), or path of a TOML file"""
    gpus: Annotated[Gpus, unit("GPUs")]
    """number of GPUs of the job"""


@with_features
class ParallelismSection(Section):
    """How the job is split over the GPUs, whose number is the product of tp, pp, cp and dp."""

    tp: Gpus = 1
    """tensor parallel: number of GPUs that share each layer"""
    pp: Gpus = 1
    """pipeline parallel: number of ranks of the pipeline"""
    dp: Gpus | None = None
    """data parallel: number of replicas; default: cluster.gpus / (tp pp cp)"""
    cp: Gpus = 1
    """context parallel: number of GPUs that share each sequence"""
    ep: Count = 1
    """expert parallel: number of GPUs that share the experts"""
    etp: Count = 1
    """tensor parallel inside experts: number of GPUs that share each expert"""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage: 1 splits the optimizer state over dp, 2 also gradients, 3 also parameters"""
    optimizer_instances: Gpus = 1
    """zero 1: number of groups of replicas; each group splits a whole optimizer state"""
    overlap_grad_reduce: Switch = True
    """whether gradients are reduced bucket by bucket during the backward"""
    overlap_param_gather: Switch = False
    """with zero 1: whether parameters are gathered beside the first forwards, not after the
    optimizer; an override of zero = 0 or 3 turns it off"""
    overlap_p2p: Switch | None = None
    """whether the pipeline's sends and receives run beside kernels; default: true unless they are
    batched"""
    bucket_mb: Annotated[float, Field(gt=0, le=1e9), unit("MB")] = 40.0
    """size of a gradient bucket, in MB (1e6 bytes)"""
    first_bucket_mb: Annotated[float, Field(gt=0, le=1e9), unit("MB")] | None = None
    """size of the first gradient bucket, in MB (torch's DDP: 1); default: bucket_mb"""
    gradient_as_bucket_view: Switch = True
    """true: gradients are made in their bucket; false: DDP copies them in and out"""
    p2p: Literal["auto", "direction", "pair", "batched"] = "auto"
    """streams of the pipeline's messages: one per direction, one per pair of ranks, or batched
    kernels; auto: as the runtime that the schedule comes from sends them"""
    order: str = "tp-cp-ep-dp-pp"
    """order in which axes number the ranks, innermost first"""
    strategy: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """path of a Python file of yours, such as ./mine.py, whose function rewrites what stages run;
    see docs/extending"""


@with_features
class ScheduleSection(Section):
    """The order in which each pipeline rank runs its microbatches."""

    name: Name = "one_f_one_b"
    """name from `traincast list schedules`, a Python file of yours such as ./mine.py, or from_csv
    with csv"""
    chunks: Layers | None = None
    """stages per rank, for interleaved schedules; default: 2 for those"""
    group: Count | None = None
    """interleaved: microbatches that pass a chunk in a row; default: one per rank"""
    overlap: Switch = False
    """interleaved: whether a forward and the backward after it run as an overlapped pair
    (Megatron's MoE overlap)"""
    layers_per_stage: Split | None = None
    """layers of each of the pp x chunks stages, first to last; default: the same number each. A
    first or last stage with 0 layers holds only the embedding or the head"""
    csv: Name | None = None
    """path of a file with the order in torch's CSV format, relative to this file; leave name out
    then"""
    deferred_wgrad: Switch = False
    """whether weight gradients are computed later than input gradients; not simulated yet"""
    pair: Literal["serial", "fused", "shared"] = "shared"
    """the forward and backward of an overlapped pair: serial (one after the other), fused
    (likewise, but as one block) or shared (side by side)"""


@with_features
class TrainingSection(Section):
    """Batch, number formats, and what the backward recomputes."""

    micro_batch: Annotated[Count, unit("samples")] = 1
    """samples per microbatch"""
    global_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES), unit("samples")]
    """samples per step, over all replicas"""
    dtype: Dtype = "bf16"
    """number format of activations and weights: bf16, fp16 or fp32"""
    matmul: Literal["tf32"] | None = None
    """number format of matrix products if dtype is fp32: tf32, if PyTorch is allowed to use it;
    default: dtype"""
    grad_dtype: Dtype = "fp32"
    """number format in which gradients are kept and reduced"""
    weight_gradients: Literal["passing", "cached", "kept"] = "passing"
    """what holds 16-bit weight gradients: passing (one at a time), cached (Transformer Engine) or
    kept (a stage's)"""
    param_gather_dtype: Dtype | None = None
    """number format in which parameters are gathered; default: dtype"""
    optimizer: str = "adam"
    """what updates the weights: adam, or sgd without momentum, which keeps no moments"""
    optimizer_state: StateTable | None = None
    """number formats of Adam's state, which one kernel updates: { master = "none", first = "bf16",
    ... }"""
    foreach: Switch = False
    """adam: whether the update is PyTorch's foreach operators, its default, instead of one fused
    kernel"""
    clip: Switch | Literal["post"] = True
    """true: gradients are clipped by their norm, after all ranks have summed it; false: not
    clipped; "post": the norm passes from stage to stage and is checked at the weight update, so
    that no stage waits for later ones"""


class SimulationSection(Section):
    """How the job is simulated."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of everything random; the same seed gives the same timeline"""
    fold: Literal["auto", "none"] = "auto"
    """auto simulates one of several ranks that cannot differ; none simulates all ranks"""
    engine: Literal["auto", "simpy", "compiled"] = "auto"
    """what runs the graph, with the same timeline: simpy, or compiled, which needs
    traincast[fast]; auto takes compiled for large graphs"""
    host: Switch | Literal["eager", "megatron", "compiled", "graphs"] | RecordedHost = False
    """the CPU, which launches kernels and waits where Megatron-LM's does. eager (PyTorch's
    modules), megatron, compiled (torch.compile of layers), graphs (CUDA graphs of layers), or the
    path of a file of `traincast record host`: simulated where it is late, at those prices; true:
    simulated, and every launch takes launch_us"""
    launch_us: Annotated[float, Field(ge=0, le=1e6), unit("us")] = 6.0
    """with host = true: time that the CPU takes to launch one kernel, in microseconds, Python
    included"""
    steps: Annotated[int, Field(ge=1, le=1000), unit("steps")] | None = None
    """training steps in a row; default: 1, or enough for a steady state if steps overlap"""
    allocator: Literal["exact", "caching", "expandable"] = "exact"
    """exact: only the bytes in use; caching or expandable: also what PyTorch's allocator reserves,
    with fixed or expandable segments"""
    clock: Literal["power", "boost"] = "power"
    """power: GPUs compute at the clock that their power allows, by what runs in each moment; boost:
    at boost clock throughout"""
    spread: Switch = True
    """whether tensor work takes what the slowest of the GPUs that meet is expected to take, by the
    topology's gpu.spread; false: all GPUs are alike"""
    between_ms: Annotated[float, Field(ge=0, le=1e9), unit("ms")] = 0.0
    """time between two steps (loss, logging, loader), in milliseconds, which every step takes
    longer; 0 until it is measured"""
    costs: Literal["fit", "table"] = "fit"
    """where kernel times come from: fit (formulas with fitted constants) or table (not simulated
    yet)"""


class Recipe(Section):
    """A training job on a cluster; :func:`sim.recipe.recipe_file.load` fills in all defaults."""

    model: ModelSection
    cluster: ClusterSection
    parallelism: ParallelismSection = ParallelismSection.model_construct()
    schedule: ScheduleSection = ScheduleSection.model_construct()
    training: TrainingSection
    perturbations: list[PerturbationSection] = Field([])
    simulation: SimulationSection = SimulationSection.model_construct()
    failures: FailuresSection = FailuresSection.model_construct()
    checkpoint: CheckpointSection = CheckpointSection.model_construct()

    @property
    def architecture(self) -> "Model":
        """The numbers of the model, as :class:`sim.model.sizes.Model`."""
        from sim.model.sizes import model_of  # here, so that reading a recipe does not load NumPy

        return model_of(self.model.model_dump(exclude_none=True), self.simulation.seed)

    @property
    def native(self) -> bool:
        """Whether PyTorch runs the model with modules of its own, not Megatron-LM."""
        return any(of(self.parallelism) for of in strategies.declared("native"))

    @property
    def sequence(self) -> int:
        """Tokens per sample; an image counts as one."""
        return 1 if self.model.blocks else self.model.sequence or 0

    @property
    def microbatches(self) -> int:
        """Microbatches that each pipeline runs per step."""
        return self.training.global_batch // (
            self.training.micro_batch * (self.parallelism.dp or 1)
        )

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that the schedule takes besides ranks and microbatches, if given."""
        given = {
            "chunks": self.schedule.chunks,
            "group": self.schedule.group,
            "overlap": self.schedule.overlap or None,
            "batch": self.microbatches if self.microbatches > 1 else None,
        }
        takes = schedules.options(self.schedule.name)
        return {key: value for key, value in given.items() if value is not None and key in takes}

    def plan(self, times: Mapping[str, Seconds]) -> schedules.Plan:
        """Return the steps of every pipeline rank in order.

        A searched schedule takes ``times``: the seconds of each stage's F, I and W, and those of a
        p2p. Raises InputError, in one sentence, for an order from a file that cannot run.
        """
        schedule = schedules.load(self.schedule.name)
        if self.schedule.csv:
            return schedule(self.schedule.csv, self.parallelism.p2p)
        takes = schedules.options(self.schedule.name)
        known = {**times, "policy": self.parallelism.p2p, "objective": self.objective}
        given = {key: value for key, value in known.items() if key in takes} if times else {}
        return schedule(self.parallelism.pp, self.planned, **self.options, **given)

    def plans(self, times: Mapping[str, Seconds]) -> list[schedules.Plan]:
        """Return the orders among which the schedule chooses, the best first, as :meth:`plan` does.

        Of a searched schedule that is the order with the shortest makespan, or with the shortest
        span of a rank if the next step begins on each rank as soon as this one ends there.
        """
        orders = schedules.orders(self.schedule.name) if times else None
        if orders is None:
            return [self.plan(times)]
        given = tuple(times[key] for key in ("F", "I", "W", "p2p"))
        return orders(
            self.parallelism.pp, self.planned, given, self.objective, self.parallelism.p2p
        )

    @property
    def objective(self) -> Literal["span", "makespan"]:
        """What sets the pace of the steps, as :mod:`schedules.search.choice` names it."""
        return "span" if self.training.clip == "post" else "makespan"

    @property
    def flushed(self) -> bool:
        """Whether the pipeline drains at the end of each step."""
        return not schedules.asynchronous(self.schedule.name)

    @property
    def ramps(self) -> tuple[int, int]:
        """The number of steps before the steady state, and after it.

        A pipeline that is never flushed takes a number of updates to fill up, by which its first
        rank is ahead of its last, the same number to settle, and the same to drain. If there are
        several flushed steps, the last one is left out, because ranks that end early begin the next
        step during it.
        """
        updates = -(-self.parallelism.pp // self.microbatches)
        return (1, 1) if self.flushed else (2 * updates, updates)

    @property
    def planned(self) -> int:
        """Microbatches in the plan: those of one step, or of all steps if there is no flush."""
        return self.microbatches * (1 if self.flushed else self.simulation.steps or 1)

    @property
    def stages(self) -> int:
        """Stages of the pipeline: ``chunks`` model chunks on each of ``pp`` ranks."""
        return self.parallelism.pp * (self.schedule.chunks or 1)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each stage, first to last."""
        return self.schedule.layers_per_stage or ()
