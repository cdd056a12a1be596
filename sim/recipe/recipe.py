"""Which keys a recipe has, of which type, and what each means.

One class per section of the TOML file. Only what one value can say for itself is checked here; what
several values have to agree on is checked in :mod:`sim.recipe.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

import schedules
from schedules.times import Seconds
from sim.machine.topology import MOST_GPUS
from sim.recipe.sections import (
    MOST_EXPERTS,
    Count,
    DeepSpeedTable,
    Fp8Table,
    FsdpTable,
    LoadSection,
    MlaSection,
    OffloadTable,
    PerturbationSection,
    RecomputeTable,
    Section,
    StateTable,
)

if TYPE_CHECKING:
    from sim.model.sizes import Model

MOST_LAYERS = 10_000
MOST_SAMPLES = 1_000_000
Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS)]
AnyLayers = Annotated[int, Field(ge=0, le=MOST_LAYERS)]
Split = Annotated[tuple[AnyLayers, ...], Field(strict=False, max_length=MOST_LAYERS)]
Blocks = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1000)], ...],
    Field(strict=False, min_length=1, max_length=8),
]
Experts = Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
Switch = bool
Dtype = Literal["bf16", "fp16", "fp32"]
Table = dict[str, Any]

NOT_YET: dict[str, tuple[object, ...]] = {
    "schedule.deferred_wgrad": (False,),
    "training.optimizer": ("adam", "sgd"),
    "simulation.engine": ("auto", "simpy"),
    "simulation.costs": ("fit",),
}
"""Keys that are understood but not simulated yet, and the values that are."""


class ModelSection(Section):
    """A preset, a Hugging Face config.json or the numbers, which also override the other two."""

    preset: Name | None = None
    """model that comes along; `traincast list models` names them"""
    hf: Name | None = None
    """config.json of a Hugging Face model, relative to this file"""
    name: Name | None = None
    """what the model is called in outputs"""
    layers: Layers | None = None
    """transformer layers"""
    hidden: Count | None = None
    """width of the residual stream"""
    heads: Count | None = None
    """query heads"""
    kv_heads: Count | None = None
    """key and value heads; heads unless given"""
    head_dim: Count | None = None
    """width of a head; hidden / heads unless given"""
    ffn: Count | None = None
    """inner width of the MLP; 4 hidden unless given or gated"""
    gated: Switch | None = None
    """a gate beside the first linear of the MLP, such as SwiGLU"""
    vocab: Annotated[int, Field(ge=0, le=2**31)] | None = None
    """tokens in the vocabulary; 0: the layers alone, without embedding, head and loss"""
    tied: Switch | None = None
    """the head uses the embedding's weights"""
    norm: Literal["layer", "rms", "batch", "sync_batch"] | None = None
    """layer (LayerNorm) or rms (RMSNorm); of blocks batch or sync_batch (SyncBatchNorm)"""
    attention: Literal["flash", "unfused"] | None = None
    """flash (one kernel, nothing of size s x s in memory) or unfused"""
    activation: Literal["gelu", "silu", "relu2"] | None = None
    """gelu, silu or relu2 (squared ReLU)"""
    fused: Switch | Literal["except_gate"] | None = None
    """activation and gate one kernel, loss in place; false keeps what eager torch keeps,
    "except_gate" that of the gate alone"""
    qkv_bias: Switch | None = None
    """biases in the QKV linear"""
    bias: Switch | None = None
    """biases in the other linears"""
    position: Literal["learned", "rope", "none"] | None = None
    """learned (a table of embeddings), rope (rotary) or none"""
    positions: Annotated[int, Field(ge=0, le=2**31)] | None = None
    """rows of the learned table; sequence unless given"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """share of activations dropped; 0 runs no dropout kernels"""
    vocab_padding: Count | None = None
    """the vocabulary is padded to a multiple of this times tp, as Megatron does; 1 pads nothing"""
    sequence: Count | None = None
    """tokens per sample"""
    mla: MlaSection | None = None
    """multi-head latent attention"""
    mtp: Annotated[int, Field(ge=0, le=64)] | None = None
    """depths of multi-token prediction, each a layer behind the last and a loss"""
    experts: Experts | None = None
    """experts of a mixture; without them every layer has one MLP"""
    topk: Experts | None = None
    """experts per token"""
    expert_ffn: Count | None = None
    """inner width of an expert; ffn unless given"""
    shared_experts: Annotated[int, Field(ge=0, le=MOST_EXPERTS)] | None = None
    """experts that see every token"""
    dense_layers: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    """first layers without experts"""
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """tokens an expert takes at most, as a multiple of its fair share; the others are dropped"""
    load: LoadSection | None = None
    """how unevenly experts are used"""
    blocks: Blocks | None = None
    """a residual network instead of a transformer: bottleneck blocks of each group"""
    image: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """rows and columns of an image; 224 unless given"""
    classes: Count | None = None
    """classes of images; 1000 unless given"""


class ClusterSection(Section):
    """On which machine the job runs."""

    topology: Name
    """name of a topology that comes along (`traincast list topologies`), or a TOML file"""
    gpus: Gpus
    """GPUs of the job"""


class ParallelismSection(Section):
    """How the job is split over the GPUs: the product of tp, pp, cp and dp is their number."""

    tp: Gpus = 1
    """tensor parallel: GPUs that share each layer"""
    pp: Gpus = 1
    """pipeline parallel: ranks of the pipeline"""
    dp: Gpus | None = None
    """data parallel: replicas; what is left over unless given"""
    sp: Switch = False
    """Megatron's sequence parallelism: activations between the linears are split over tp too"""
    cp: Gpus = 1
    """context parallel: GPUs that share each sequence"""
    cp_kind: Literal["ring", "ulysses", "allgather", "usp"] = "ring"
    """ring, ulysses, allgather or usp"""
    cp_placement: Literal["contiguous", "zigzag", "striped"] = "zigzag"
    """which tokens a rank of cp holds: one run of them, one early and one late, or every cp-th"""
    ulysses: Gpus = 1
    """usp: GPUs that exchange heads, with a ring across cp / ulysses such groups"""
    ep: Count = 1
    """expert parallel: GPUs that share the experts"""
    etp: Count = 1
    """tensor parallel inside experts"""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage: 1 splits the optimizer state over dp, 2 also gradients, 3 also parameters"""
    optimizer_instances: Gpus = 1
    """zero 1: so many runs of replicas, each of which splits all of the optimizer state"""
    fsdp: FsdpTable | None = None
    """fully sharded data parallel: { kind = "fsdp2", reshard_after_forward = true, ... }"""
    deepspeed: DeepSpeedTable | None = None
    """sizes of zero 2 and 3 as DeepSpeed has them: { stage3_prefetch_bucket_size = 5e7, ... }"""
    accumulate: Switch | None = None
    """keep whole gradients until the last microbatch (no_sync); usual for fsdp2 with pp"""
    overlap_grad_reduce: Switch = True
    """reduce gradients bucket by bucket while the backward goes on"""
    overlap_param_gather: Switch = False
    """with zero 1: gather parameters beside the first forwards rather than after the optimizer"""
    overlap_p2p: Switch | None = None
    """the pipeline's sends and receives run beside kernels; true unless p2p is batched"""
    tp_overlap: Switch = False
    """cut sp's collectives into tp chunks that run beside the GEMM that feeds or uses them"""
    tp_backward_overlap: Switch = True
    """tp's collectives of the backward run beside the weight-gradient GEMM"""
    bucket_mb: Annotated[float, Field(gt=0, le=1e9)] = 40.0
    """gradients of one bucket, in MB (1e6 bytes)"""
    first_bucket_mb: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """of the first bucket, as torch's DDP has it (1 MB); bucket_mb unless given"""
    gradient_as_bucket_view: Switch = True
    """gradients are made in their bucket; false: DDP copies them there and back"""
    p2p: Literal["direction", "pair", "batched"] = "direction"
    """streams of the pipeline: one per direction, one per pair of ranks, or batched kernels"""
    scatter_gather: Switch = False
    """send 1/tp over the wire and gather inside the node; for jobs without sp"""
    order: str = "tp-cp-ep-dp-pp"
    """how ranks are numbered, innermost first"""
    strategy: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """a file of your own, ./mine.py, whose function rewrites what stages run; see docs/extending"""


class ScheduleSection(Section):
    """In which order each pipeline rank runs its microbatches."""

    name: Name = "one_f_one_b"
    """`traincast list schedules` names them; or a file of your own, ./mine.py; from_csv with csv"""
    chunks: Layers | None = None
    """stages per rank, for interleaved schedules (2 unless given)"""
    group: Count | None = None
    """interleaved: microbatches that pass a chunk in a row; one per rank unless given"""
    overlap: Switch = False
    """interleaved: a forward and the backward behind it overlap, a pair (Megatron's MoE overlap)"""
    layers_per_stage: Split | None = None
    """layers of each of the pp x chunks stages, first to last, even unless given; 0 leaves an end
    with the embedding or the head alone"""
    csv: Name | None = None
    """file with the order in torch's CSV, relative to this file; name is then left out"""
    deferred_wgrad: Switch = False
    """weight gradients later than input gradients"""
    pair: Literal["serial", "fused", "shared"] = "shared"
    """overlapped pairs: one member after the other, so but as one block, or both side by side"""


class TrainingSection(Section):
    """Batch, number formats and what the backward recomputes."""

    micro_batch: Count = 1
    """samples per microbatch"""
    global_batch: Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
    """samples per step"""
    dtype: Dtype = "bf16"
    """of activations and weights: bf16, fp16 or fp32"""
    matmul: Literal["tf32"] | None = None
    """numbers that matrix products of fp32 take: tf32, as torch does when it is let; or dtype"""
    grad_dtype: Dtype = "fp32"
    """of gradients as they are kept and reduced"""
    weight_gradients: Literal["passing", "cached", "kept"] = "passing"
    """of 16 bits: passing (one at a time), cached (Transformer Engine's) or kept (of a stage)"""
    param_gather_dtype: Dtype | None = None
    """of parameters as they are gathered; dtype unless given"""
    fp8: Fp8Table | None = None
    """linears of the layers multiply in fp8: { recipe = "delayed", params = false, ... }"""
    recompute: Literal["none", "selective", "full"] | RecomputeTable = "none"
    """none, selective (the attention core), full (every layer from its input) or a table"""
    offload: Literal["activations", "optimizer"] | OffloadTable | None = None
    """what the host keeps: activations until their backward, or the optimizer, which runs there"""
    optimizer: str = "adam"
    """what updates the weights: adam, or sgd without momentum, which keeps no moments"""
    optimizer_state: StateTable | None = None
    """numbers of Adam's state, { master = "none", first = "bf16", ... }, updated by one kernel"""
    clip: Switch | Literal["post"] = True
    """gradients are clipped by their norm, which all ranks sum first; post: it goes from stage to
    stage and is checked when weights are updated, so that no stage waits for later ones"""

    @property
    def offloaded(self) -> OffloadTable:
        """What ``offload`` says as a table; a word is all of it."""
        if isinstance(self.offload, OffloadTable):
            return self.offload
        return OffloadTable.model_validate({self.offload: 1.0} if self.offload else {})


class SimulationSection(Section):
    """How the job is simulated."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of everything random; same seed, same timeline"""
    fold: Literal["auto", "none"] = "auto"
    """auto simulates one of several ranks that cannot differ; none simulates all"""
    engine: Literal["auto", "simpy", "compiled"] = "auto"
    """what runs the graph"""
    host: Switch = False
    """simulate the CPU that launches kernels, and waits where Megatron-LM's does"""
    launch_us: Annotated[float, Field(ge=0, le=1e6)] = 6.0
    """microseconds that one launch takes the CPU, Python included"""
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    """training steps in a row; 1, or enough for a steady state if the pipeline is never flushed"""
    allocator: Literal["exact", "caching", "expandable"] = "exact"
    """also PyTorch's caching allocator: what it reserves, with fixed or expandable segments"""
    costs: Literal["fit", "table"] = "fit"
    """fit: kernel times by formula with fitted constants"""


class Recipe(Section):
    """A training job on a cluster; :func:`sim.recipe.load.load` fills in all defaults."""

    model: ModelSection
    cluster: ClusterSection
    parallelism: ParallelismSection = ParallelismSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection
    perturbations: list[PerturbationSection] = Field([])
    simulation: SimulationSection = SimulationSection()

    @property
    def architecture(self) -> Model:
        """The model's numbers, for :mod:`sim.model.sizes`."""
        from sim.model.sizes import model_of  # here, so that reading a recipe does not load NumPy

        return model_of(self.model.model_dump(exclude_none=True), self.simulation.seed)

    @property
    def sequence(self) -> int:
        """Tokens per sample; an image is one."""
        return 1 if self.model.blocks else self.model.sequence or 0

    @property
    def microbatches(self) -> int:
        """Microbatches that each pipeline runs per step."""
        return self.training.global_batch // (
            self.training.micro_batch * (self.parallelism.dp or 1)
        )

    @property
    def options(self) -> dict[str, Any]:
        """What the schedule takes besides ranks and microbatches, as far as it is given."""
        given = {
            "chunks": self.schedule.chunks,
            "group": self.schedule.group,
            "overlap": self.schedule.overlap or None,
            "batch": self.microbatches if self.microbatches > 1 else None,
        }
        takes = schedules.options(self.schedule.name)
        return {key: value for key, value in given.items() if value is not None and key in takes}

    def plan(self, times: Mapping[str, Seconds]) -> schedules.Plan:
        """The steps of every pipeline rank in order.

        A searched schedule takes ``times``: seconds of the stages' F, I and W, and of a p2p.
        Raises ValueError, in one sentence, for an order from a file that cannot run.
        """
        schedule = schedules.load(self.schedule.name)
        if self.schedule.csv:
            return schedule(self.schedule.csv, self.parallelism.p2p)
        given = times if schedules.takes_times(self.schedule.name) else {}
        return schedule(self.parallelism.pp, self.planned, **self.options, **given)

    @property
    def flushed(self) -> bool:
        """Whether the pipeline drains at the end of each step."""
        return not schedules.asynchronous(self.schedule.name)

    @property
    def ramps(self) -> tuple[int, int]:
        """How many steps come before the steady state, and after it.

        A pipeline that is never flushed takes as many updates to fill up as its first rank is ahead
        of its last, as many to settle, and as many to drain. Of flushed steps the last is left out
        if others stay: ranks that end early begin the next one in it.
        """
        updates = -(-self.parallelism.pp // self.microbatches)
        return (1, 1) if self.flushed else (2 * updates, updates)

    @property
    def planned(self) -> int:
        """Microbatches in the plan: of a step or, where the pipeline is not flushed, of all."""
        return self.microbatches * (1 if self.flushed else self.simulation.steps or 1)

    @property
    def stages(self) -> int:
        """Stages of the pipeline: model chunks, ``chunks`` on each of ``pp`` ranks."""
        return self.parallelism.pp * (self.schedule.chunks or 1)

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Layers of each stage, first to last."""
        return self.schedule.layers_per_stage or ()
