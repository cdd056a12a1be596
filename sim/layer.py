"""Which kernels one layer runs on one rank, in forward order, what they move and what they keep.

For GPT with 16-bit activations and dropout the bytes kept sum to what Korthikanti et al. 2022 give:
s b h (34 + 5 a s / h) on one GPU, s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism.
"""

from __future__ import annotations

from functools import cache

from sim.attention import attention
from sim.model import Model
from sim.operators import Launch, Operator, Share, linear, memory


@cache
def layer(model: Model, share: Share) -> tuple[Operator, ...]:
    """The operators of one transformer layer on a rank with this share."""
    h, attended = share.hidden, share.heads * share.head_dim
    qkv = attended + 2 * share.kv_heads * share.head_dim
    width = share.ffn * (2 if model.gated else 1)
    return (
        norm(share, "attention_norm"),
        linear(share, "qkv", h, qkv, "column", bias=model.qkv_bias),
        *attention(model, share),
        linear(share, "projection", attended, h, "row"),
        residual(model, share, "attention_residual"),
        norm(share, "mlp_norm"),
        linear(share, "fc1", h, width, "column"),
        activation(model, share),
        linear(share, "fc2", share.ffn, h, "row"),
        residual(model, share, "mlp_residual"),
    )


def norm(share: Share, name: str, branch: bool = True) -> Operator:
    """A layer or RMS norm; where a residual branches off, gradients of both are added."""
    x = share.residual
    backward = [Launch(f"{name}_backward", memory(share, "norm", 3 * x))]
    if branch:
        backward.append(Launch(f"{name}_grad_add", memory(share, "elementwise", 3 * x)))
    return Operator(name, (Launch(name, memory(share, "norm", 2 * x)),), tuple(backward), saved=x)


def residual(model: Model, share: Share, name: str) -> Operator:
    """Bias, dropout and residual add of a row-parallel linear's output, as one kernel."""
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


def activation(model: Model, share: Share) -> Operator:
    """The MLP's nonlinearity, its bias fused; gated: the product of both halves."""
    name, width = model.activation, 2 if model.gated else 1
    x = float(share.rows * share.ffn * share.element)
    summed = Launch(f"{name}_bias_grad", memory(share, "elementwise", width * x))
    return Operator(
        name,
        (Launch(name, memory(share, "elementwise", (width + 1) * x)),),
        (Launch(f"{name}_backward", memory(share, "elementwise", (2 * width + 1) * x)),),
        (summed,) if model.bias else (),
        saved=width * x,
    )
