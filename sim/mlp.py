"""Which kernels an MLP runs on one rank: a linear each way and what is between them.

A gated MLP's first linear is both halves at once, and the activation their product.
"""

from __future__ import annotations

from sim.model import Model
from sim.operators import Launch, Operator, Share, linear, memory


def mlp(model: Model, share: Share, ffn: int, prefix: str = "") -> tuple[Operator, ...]:
    """The operators of an MLP of inner width ``ffn`` over all rows."""
    width = ffn * (2 if model.gated else 1)
    return (
        linear(share, f"{prefix}fc1", share.hidden, width, "column"),
        activation(model, share, share.rows, ffn, prefix),
        linear(share, f"{prefix}fc2", ffn, share.hidden, "row"),
    )


def activation(model: Model, share: Share, rows: int, ffn: int, prefix: str = "") -> Operator:
    """The nonlinearity, its bias fused; gated: the product of both halves."""
    name, width = f"{prefix}{model.activation}", 2 if model.gated else 1
    x = float(rows * ffn * share.element)
    summed = Launch(f"{name}_bias_grad", memory(share, "elementwise", width * x))
    return Operator(
        name,
        (Launch(name, memory(share, "elementwise", (width + 1) * x)),),
        (Launch(f"{name}_backward", memory(share, "elementwise", (2 * width + 1) * x)),),
        (summed,) if model.bias else (),
        saved=width * x,
    )
