"""Which kernels one layer runs on one rank, in forward order, what they move and what they keep.

For GPT with 16-bit activations and dropout the kept bytes sum to those of Korthikanti et al. 2022:
s b h (34 + 5 a s / h) on one GPU, s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism.
"""

from __future__ import annotations

from functools import cache

from sim.model.attention import attention
from sim.model.layers import convolution
from sim.model.layers.dense import mlp
from sim.model.layers.experts import experts
from sim.model.layers.mla import latent_attention
from sim.model.operators import Launch, Operator, Share, finished, linear, memory, norm
from sim.model.sizes import Model


def layer(model: Model, share: Share, number: int = 0) -> tuple[Operator, ...]:
    """Return the operators of layer ``number`` on a rank with this share."""
    if model.resnet:
        return convolution.layer(model.resnet, share, number)
    return _layer(model, share, model.routed(number))


@cache
def _layer(model: Model, share: Share, routed: bool) -> tuple[Operator, ...]:
    attended = share.heads * share.head_dim
    qkv = attended + 2 * share.kv_heads * share.head_dim
    inward = (
        linear(share, "qkv", share.hidden, qkv, "column", bias=model.qkv_bias),
        *attention(model, share),
        linear(share, "projection", attended, share.hidden, "row"),
    )
    operators = (
        norm(share, "attention_norm"),
        *(latent_attention(model, model.mla, share) if model.mla else inward),
        residual(model, share, "attention_residual"),
        norm(share, "mlp_norm"),
        *(experts(model, share) if routed else mlp(model, share, share.ffn)),
        residual(model, share, "mlp_residual"),
    )
    return finished(operators, share)


def residual(model: Model, share: Share, name: str) -> Operator:
    """Return bias, dropout and residual add of a row-parallel linear's output, as one kernel."""
    x, mask = share.residual, float(share.tokens * share.hidden * (model.dropout > 0))
    dropped = Launch(f"{name}_backward", memory(share, "elementwise", 2 * x + mask))
    summed = Launch(f"{name}_bias_grad", memory(share, "elementwise", x))
    return Operator(
        name,
        (Launch(name, memory(share, "elementwise", 3 * x + mask)),),
        (dropped,) if mask else (),
        (summed,) if model.bias else (),
        saved=mask,
    )
