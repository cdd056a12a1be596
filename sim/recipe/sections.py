"""The parts of a recipe's sections: tables with checked keys, and smaller tables inside them."""

from typing import Annotated, Literal

from pydantic import Field

from sim.keys.section import Section, unit
from sim.machine.topology import MOST_GPUS
from sim.units import BYTES

MOST_EXPERTS = 65_536


Gpus = Annotated[int, Field(ge=1, le=MOST_GPUS)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Counts = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e15)], ...], Field(strict=False, max_length=MOST_EXPERTS)
]
Amount = Annotated[float, Field(ge=0, le=1e18)]


SCALED = ("fp8", "fp16")
"""Number formats of state that need a scale, one for each tensor, which is not counted."""


class StateTable(Section):
    """The number formats in which Adam keeps its state."""

    master: Literal["fp32", "fp16", "bf16", "remainder", "none"] = "fp32"
    """number format of the master copy; none, or dtype itself: there is no copy; remainder: only
    the bits that bf16 lacks of fp32 are kept"""
    first: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """number format of the first moment"""
    second: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """number format of the second moment"""

    @property
    def moments(self) -> int:
        """Bytes of both moments of one parameter."""
        return BYTES[self.first] + BYTES[self.second]

    def copy_of(self, weights: str) -> int:
        """Return the bytes of the master copy of one weight of this dtype; 0 if it is the same.

        A remainder is the 16 bits by which fp32 exceeds a bf16 weight (Transformer Engine's
        ``store_param_remainders``).
        """
        if self.master in ("none", weights):
            return 0
        return 2 if self.master == "remainder" else BYTES[self.master]

    def widened(self, weights: str) -> tuple[str, ...]:
        """Return the dtypes of tensors that an update copies to fp32 before it and back after.

        Kernels take fp32 and bf16 as they are in memory; fp16 and fp8 have a scale that depends on
        the result.
        """
        own = (self.master,) if self.copy_of(weights) else ()
        return tuple(dtype for dtype in (*own, self.first, self.second) if dtype in SCALED)


Positive = Annotated[float, Field(gt=0, le=1e6)]
Ratios = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=1_000_000)]
Sigma = Annotated[float, Field(gt=0, le=5)]
Rank = Annotated[int, Field(ge=0, lt=2**31)]


class NoiseTable(Section):
    """Random kernel times, where the step of all replicas is told from a sample of them."""

    sigma: Sigma | Ratios
    """random kernel times: sigma of a log-normal factor with mean 1, or a list of factors to draw
    from"""
    replicas: Annotated[int, Field(ge=8, le=2**31)]
    """data-parallel replicas that are drawn and simulated; one more stands for the rest"""


class PerturbationSection(Section):
    """One disturbance: exactly one of compute, noise, lengths, gpu_spread, bandwidth and stall."""

    rank: Rank | Annotated[tuple[Rank, ...], Field(strict=False, min_length=1)] | None = None
    """where it acts: a rank or a list of ranks; default: everywhere"""
    compute: Positive | None = None
    """factor on the time of kernels; 1.3 is a GPU that takes 30 % longer"""
    noise: Sigma | Ratios | NoiseTable | None = None
    """random kernel times: sigma of a log-normal factor with mean 1, or a list of factors to draw
    from; with a sample of replicas: { sigma = 0.05, replicas = 64 }"""
    lengths: Sigma | Ratios | None = None
    """microbatches of different lengths: sigma of a log-normal factor with mean 1, or the factor of
    each microbatch"""
    gpu_spread: Annotated[float, Field(gt=0, le=1)] | Ratios | None = None
    """GPUs of different speeds, drawn instead of the topology's gpu.spread: sigma of a log-normal
    factor with mean 1 on each GPU's tensor work, or a list of factors to draw from"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """gpu_spread: seed of the GPUs that are drawn; default: simulation.seed"""
    link: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """which links are slow: nvlink, pcie, ib, fabric, the `kind` of a tier of the topology, or a
    name that `traincast topology` lists"""
    bandwidth: Positive | None = None
    """factor on the bandwidth of those links"""
    stall: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """length of one pause, as text with its unit, such as 50 ms"""
    step: Annotated[int, Field(ge=0, lt=1000)] | None = None
    """stall: the training step at whose beginning it happens, counted from 0; default: 0"""
    at: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """stall: the time of the run at which it happens, instead of a step, such as 1.2 s"""
    stream: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """stall: the stream that pauses; default: compute, or with simulation.host the CPU"""

    @property
    def sigma(self) -> float | tuple[float, ...] | None:
        """The noise on each kernel, however it is given."""
        return self.noise.sigma if isinstance(self.noise, NoiseTable) else self.noise

    @property
    def replicas(self) -> int | None:
        """The number of replicas that are drawn; None: all are simulated."""
        return self.noise.replicas if isinstance(self.noise, NoiseTable) else None


class MlaSection(Section):
    """Widths of multi-head latent attention, in elements."""

    q_lora_rank: Annotated[int, Field(ge=0, le=2**31)] = 0
    """width of the queries' latent; 0: queries come straight from the residual stream"""
    kv_lora_rank: Count
    """width of the latent of keys and values"""
    qk_nope_head_dim: Count
    """width of the part of a query or key head that is not rotated"""
    qk_rope_head_dim: Count
    """width of the part of a query or key head that is rotated"""
    v_head_dim: Count
    """width of a value head"""


class RecurrenceSection(Section):
    """Sizes of layers with a state instead of keys, such as mamba2 and gated_delta."""

    heads: Count
    """number of heads"""
    head_dim: Count
    """width of a head's values, in elements"""
    groups: Count
    """number of heads of keys and queries (of B and C), each of which heads / groups heads share"""
    state: Count
    """width of a key (of B and C), in elements"""
    convolution: Count = 4
    """tokens that the convolution before the scan mixes"""
    chunk: Annotated[Count, unit("tokens")] = 128
    """tokens that meet by products of matrices; the state goes from chunk to chunk"""


class KernelsTable(Section):
    """Which kernels run where others run one fused kernel; the defaults are Megatron-LM's."""

    norm: Literal["fused", "eager"] = "fused"
    """RMS norms: one kernel each way, or PyTorch's operators in fp32 (eager)"""
    rope: Literal["fused", "complex"] = "fused"
    """rotary embedding: one kernel, or complex numbers in fp32, as in Llama's and torchtitan's
    apply_rotary_emb, which torch.compile does not fuse either"""
    loss: Literal["megatron", "torch", "fused"] = "megatron"
    """kernels over logits: Megatron-LM's vocabulary-parallel cross entropy, F.cross_entropy of fp32
    logits (torch; with tp Megatron-LM's), or one kernel each way (fused: Transformer Engine's,
    Liger's, FlashAttention's)"""
    experts: Literal["grouped", "sequential"] = "grouped"
    """one kernel for all experts of a rank (CUTLASS, torch._grouped_mm, DeepGEMM), or one matrix
    product after the other (Megatron-Core's SequentialMLP; Transformer Engine's GroupedLinear,
    which runs one cuBLAS product for each on four streams)"""
    permute: Literal["fused", "eager"] = "fused"
    """copies of tokens in experts' order: kernels of their own (Megatron-Core's
    moe_permute_fusion), or PyTorch's index_select and scatter_add (eager)"""


class LoadSection(Section):
    """How unevenly tokens are spread over the experts."""

    kind: Literal["balanced", "zipf", "dirichlet", "histogram"]
    """distribution: balanced, zipf (with s), dirichlet (with alpha and simulation.seed) or
    histogram (with counts)"""
    s: Annotated[float, Field(ge=0, le=100)] | None = None
    """zipf: exponent; the e-th expert is used in proportion to e^-s"""
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """dirichlet: concentration; the larger, the more even"""
    counts: Counts | None = None
    """histogram: how much each expert is used, in any unit"""
