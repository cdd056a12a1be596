"""Which kernels an MLP runs on one rank: two linears and the activation between them.

The first linear of a gated MLP computes both halves at once; the activation multiplies them.
"""

from __future__ import annotations

from sim.model.operators import Launch, Operator, Share, linear, memory
from sim.model.sizes import Model


def mlp(model: Model, share: Share, ffn: int, prefix: str = "") -> tuple[Operator, ...]:
    """Return the operators of an MLP of inner width ``ffn`` over all rows."""
    width = ffn * (2 if model.gated else 1)
    return (
        linear(share, f"{prefix}fc1", share.hidden, width, "column"),
        activation(model, share, share.rows, ffn, prefix),
        linear(share, f"{prefix}fc2", ffn, share.hidden, "row"),
    )


def activation(model: Model, share: Share, rows: int, ffn: int, prefix: str = "") -> Operator:
    """Return the nonlinearity with its bias fused; if gated, also the product of both halves.

    An unfused gated one is two kernels, and a third in the backward that joins the gradients of the
    halves; the nonlinearity's output is kept for the product.
    """
    name, width = f"{prefix}{model.activation}", 2 if model.gated else 1
    x = float(rows * ffn * share.element)
    summed = Launch(f"{name}_bias_grad", memory(share, "elementwise", width * x))
    forward, backward, between = {"": width + 1}, {"_backward": 2 * width + 1}, 0.0
    if model.gated and model.fused is not True:
        forward = {"": 2, "_product": 3}
        backward = {"_product_backward": 6, "_backward": 3, "_join": 4}
        between = x
    return Operator(
        name,
        tuple(
            Launch(name + what, memory(share, "elementwise", n * x)) for what, n in forward.items()
        ),
        tuple(
            Launch(name + what, memory(share, "elementwise", n * x)) for what, n in backward.items()
        ),
        (summed,) if model.bias else (),
        saved=width * x + between,
    )
