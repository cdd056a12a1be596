"""Which kernels multi-head latent attention runs (DeepSeek-V2, arXiv:2405.04434, section 2.1).

Queries come from one latent, keys and values from another: a matrix into the latent, which no rank
splits, a norm, and a matrix out of it, split over heads. Under sequence parallelism ranks gather
the latents, which are narrow, and not the residual stream. As in Megatron-LM every head's keys and
values are written out in training. The rotated part of the keys, which all heads share, travels
with their latent (Megatron-LM gathers it separately) and is copied to every head.
"""

from __future__ import annotations

from collections.abc import Collection

from sim.graph import Compute
from sim.model.attention import square
from sim.model.blocks import STATISTICS
from sim.model.operators import Launch, Operator, Share, grad_add, linear, memory, norm
from sim.model.part import Part
from sim.model.sizes import Mla, Model, Parameters


class Kind(Part):
    """Multi-head latent attention; matrices into latents and their norms are whole everywhere."""

    @property
    def mla(self) -> Mla:
        """The widths."""
        assert self.model.mla
        return self.model.mla

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators from latents to projection."""
        return latent_attention(self.model, self.mla, share)

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank."""
        held, latents = super().parameters(tp, ep, etp), self._latents()
        norms = self.mla.q_lora_rank + self.mla.kv_lora_rank
        return held._replace(
            linear=held.linear - latents, norm=held.norm + norms, replicated=latents
        )

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the matrices into latents, out of them, and of the projection."""
        heads = self.model.heads // tp
        projection = heads * self.mla.v_head_dim * self.model.hidden
        return self._up(heads) + projection + self._latents()

    def core(self, batch: int, sequence: int) -> float:
        """Return the FLOPs of scores and context, the causal mask not used."""
        width = self.mla.qk_head_dim + self.mla.v_head_dim
        return 2.0 * batch * sequence**2 * self.model.heads * width

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return the core, and the matrices out of the latents, if they run again."""
        core = self.core(batch, sequence) if "core_attn" in modules else 0.0
        return core, self._up(self.model.heads) if "mla_up_proj" in modules else 0

    def _latents(self) -> int:
        mla = self.mla
        return self.model.hidden * (mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim)

    def _up(self, heads: int) -> int:
        """Return the elements of the matrices out of the latents."""
        mla = self.mla
        keys = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return (mla.q_lora_rank or self.model.hidden) * heads * mla.qk_head_dim + keys


def latent_attention(model: Model, mla: Mla, share: Share) -> tuple[Operator, ...]:
    """Return the operators from the output of the layer's first norm to that of the projection."""
    widths = mla.qk_head_dim, mla.v_head_dim
    unfused = model.attention == "unfused"
    core = square(share, model.dropout, *widths) if unfused else (_core(mla, share),)
    return (
        grad_add(share, "latents"),
        *_queries(mla, share),
        *_keys(mla, share),
        _rotary(mla, share),
        *core,
        linear(share, "projection", share.heads * mla.v_head_dim, share.hidden, "row"),
    )


def _queries(mla: Mla, share: Share) -> tuple[Operator, ...]:
    """Return the queries' linears, through their latent if they have one.

    The norm's output is kept here for the keys too.
    """
    rank, width = mla.q_lora_rank, share.heads * mla.qk_head_dim
    if not rank:
        return (linear(share, "q", share.hidden, width, "column"),)
    return (
        linear(share, "q_down", share.hidden, rank, ""),
        norm(share, "q_norm", branch=False, width=rank),
        linear(share, "q_up", rank, width, "column"),
    )


def _keys(mla: Mla, share: Share) -> tuple[Operator, ...]:
    """Return the linears of values and unrotated keys, and the gather of the keys' rotated part."""
    rank, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
    width = share.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    up = linear(share, "kv_up", rank, width, "column")
    down = linear(share, "kv_down", share.hidden, rank + rope, "")
    return (
        down._replace(saved=0.0),
        norm(share, "kv_norm", branch=False, width=rank),
        up._replace(buffer=float(share.rows * (rank + rope) * share.element)),
    )


def _rotary(mla: Mla, share: Share) -> Operator:
    """Return the kernel that rotates queries and keys and joins each head's key.

    What the core needs is kept here.
    """
    heads = float(share.rows * share.heads * share.element)
    q = k = heads * mla.qk_head_dim
    parts = heads * mla.qk_nope_head_dim + share.rows * mla.qk_rope_head_dim * share.element
    work = memory(share, "elementwise", 2 * q + parts + k)
    launches = (Launch("rotary", work),), (Launch("rotary_backward", work),)
    return Operator("rotary", *launches, saved=q + k + heads * mla.v_head_dim)


def _core(mla: Mla, share: Share) -> Operator:
    """Return FlashAttention as :func:`sim.model.attention.flash`, with values of another width.

    The forward is one product of each width; the backward has three of the queries' width and two
    of the values'. A price takes one head dimension: the mean over the products.
    """
    qk, v, s = mla.qk_head_dim, mla.v_head_dim, share.sequence
    heads = float(share.rows * share.heads * share.element)
    statistics = float(STATISTICS * share.rows * share.heads)
    pairs = share.batch * share.heads * s**2 / 2  # pairs that the causal mask leaves

    def kernel(name: str, width: int, products: int, moved: float) -> Launch:
        shape = (share.batch, share.heads, s, s, round(width / products))
        flops = 2.0 * pairs * width
        return Launch(name, Compute(name, flops, moved, shape, share.dtype, share.attention))

    moved = 2 * heads * (qk + v)  # queries, keys, values and output
    return Operator(
        "attention",
        (kernel("attention", qk + v, 2, moved + statistics),),
        (kernel("attention_backward", 3 * qk + 2 * v, 5, 2 * moved + statistics),),
        saved=statistics,
        core=True,
    )
