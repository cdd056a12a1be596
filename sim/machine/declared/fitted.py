"""The tables of fitted constants of kernels in [gpu]."""

from typing import Literal, Self

from pydantic import ConfigDict, model_validator

from sim.machine.attention_tables import KERNELS, NEEDED
from sim.machine.declared.table import Table, lacks, related
from sim.machine.declared.values import Amount, BySize, Delay, Factor, Part, Share, Window

Kernel = Literal["triton", "flash2", "flash3", "cudnn"]


class GemmTable(Table):
    """Fitted constants of matrix products, a table per number format."""

    model_config = ConfigDict(title="DTYPE")

    tile_256x128: Share
    """share of the peak that a full wave of tiles of 256 x 128 reaches"""
    tile_128x128: Share
    """the same for tiles of 128 x 128"""
    tile_128x64: Share
    """the same for tiles of 128 x 64"""
    tile_64x64: Share
    """the same for tiles of 64 x 64"""
    ramp: Amount
    """columns of k that filling and draining a tile costs"""
    quantisation: Part
    """1: a partly filled last wave costs a whole one; 0: it costs its part"""
    split: Factor
    """factor on the work when k is split over several tiles"""
    derating: Amount
    """share of its time that falling clocks add to a long burst of products"""
    derating_seconds: Window
    """length of a burst of products in which half of the derating is lost"""
    accumulate: Amount
    """share of extra memory traffic that arithmetic does not hide"""
    memory: Share
    """share of the memory bandwidth that is reached"""
    fixed: Delay
    """time that every product takes on top"""


class _GemmTables(Table):
    bf16: GemmTable
    fp16: GemmTable | None = None
    tf32: GemmTable | None = None
    fp32: GemmTable | None = None
    fp8: GemmTable | None = None
    fp64: GemmTable | None = None


class _Attention(Table):
    forward: BySize[Share] | None = None
    """share of the peak that a long forward reaches"""
    backward: BySize[Share] | None = None
    """share of the peak that a long backward reaches"""
    keys: Amount | None = None
    """keys per query at which half of the share is reached"""
    backward_keys: Amount | None = None
    """the same in the backward; as keys unless given"""
    masked: Amount | None = None
    """keys per query that a causal mask adds, as it cuts through blocks; 0 unless given"""
    head_dim: Amount | None = None
    """head dimension at which half of the share is reached; 0 unless given"""
    quantisation: Part | None = None
    """1: a partly filled last wave costs a whole one; 0: it costs its part"""
    memory: Share | None = None
    """share of the memory bandwidth that is reached"""
    fixed: Delay | None = None
    """time that every kernel takes on top"""


class KernelTable(_Attention):
    """Fitted constants of fused attention, a table per kernel. A share may be a table by head
    dimension, such as `{ 64 = 0.41, 128 = 0.6 }`."""

    model_config = ConfigDict(title="KERNEL")

    forward: BySize[Share]
    backward: BySize[Share]
    keys: Amount
    quantisation: Part
    memory: Share
    fixed: Delay


class AttentionTable(_Attention):
    """Which kernel of fused attention `model.attention` means on this GPU when it names none, and
    constants that hold for all kernels; if those are complete, no kernel needs a table."""

    flash: Kernel | None = None
    """the kernel that Transformer Engine takes, for model.attention = "flash\""""
    sdpa: Kernel | None = None
    """the kernel that PyTorch takes, for model.attention = "sdpa\""""
    triton: KernelTable | None = None
    flash2: KernelTable | None = None
    flash3: KernelTable | None = None
    cudnn: KernelTable | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        there = [name for name in KERNELS if getattr(self, name)]
        for key in () if there else NEEDED:
            if getattr(self, key) is None:
                raise lacks(key)
        for key in ("flash", "sdpa"):
            if getattr(self, key) not in (None, *there):
                raise related(f'{key} = "{getattr(self, key)}" must be one of {", ".join(there)}')
        return self


class MemoryKernelsTable(Table):
    """Shares of the memory bandwidth that memory-bound kernels reach."""

    fixed: Delay
    """time that every kernel takes on top"""
    norm: Share
    """norms"""
    elementwise: Share
    """elementwise kernels"""
    softmax: Share
    """softmax"""
    embedding: Share
    """embedding lookups"""
    cross_entropy: Share
    """the loss"""
    optimizer: Share
    """the update of the weights"""
    norm_backward: Share | None = None
    """backwards of norms; without it, as norm"""
    mxfp8: Share | None = None
    """casts to mxfp8; without it, as elementwise"""
    gather: Share | None = None
    """tokens copied in the order of their experts; without it, as elementwise"""
    scatter: Share | None = None
    """sums of such copies; without it, as elementwise"""
    eager_gather: Share | None = None
    """gather by PyTorch's index_select; without it, as elementwise"""
    eager_scatter: Share | None = None
    """scatter by PyTorch's scatter_add; without it, as elementwise"""
    conv1d: Share | None = None
    """short convolutions over time of layers with a state; without it, as elementwise"""
    scan: Share | None = None
    """states handed from chunk to chunk; without it, as elementwise"""
