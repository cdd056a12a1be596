"""Which kernels an MLP runs on one rank: two linears and the activation between them.

The first linear of a gated MLP computes both halves at once; the activation multiplies them.
"""

from __future__ import annotations

from collections.abc import Collection

from sim.model.operators import Launch, Operator, Share, linear, memory
from sim.model.part import Part
from sim.model.sizes import Model, Parameters, mlp_matrices


class Kind(Part):
    """An MLP of width ``ffn``."""

    name = "mlp"

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators of the MLP."""
        return mlp(self.model, share, share.ffn)

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank."""
        held, model = super().parameters(tp, ep, etp), self.model
        width = model.ffn // tp * (2 if model.gated else 1)
        return held._replace(linear=held.linear + width * model.bias)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the two or three matrices."""
        return mlp_matrices(self.model, self.model.ffn // tp)

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return the whole MLP if it runs again."""
        return 0.0, self.used() if "mlp" in modules else 0

    def input_gradients(self, share: Share) -> float:
        """Return the larger of what is there at the second linear and at the activation."""
        before = share.whole_residual if share.tokens < share.rows else 0.0
        return around(self.model, before, float(share.rows * share.ffn * share.element))


def around(model: Model, before: float, inner: float) -> float:
    """Return the bytes of gradients that the backward of an MLP holds at once.

    At the second linear there are the gradient of its output, ``before`` if that is gathered, and
    that of its input, ``inner``. At the activation there are the gradients of its output, inner,
    and of its input, inner or twice that, while the linear's kept input, inner, is gone.
    """
    return max(before + inner, (2 if model.gated else 1) * inner)


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
