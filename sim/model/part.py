"""What a kind of layer says of itself: its kernels, its parameters and its FLOPs.

A layer is one part or two: what mixes tokens (attention, or a recurrence) and what works on each
token alone (an MLP, or experts), each between a norm and a residual add. A kind is one file of
:mod:`sim.model.layers`, whose class ``Kind`` is such a part; :meth:`sim.model.sizes.Model.kind`
says of which kinds a layer is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from sim.model.operators import Launch, Operator, Share, grad_add, memory, norm
from sim.model.sizes import Model, Parameters, norm_parameters


@dataclass(frozen=True)
class Part:
    """A part of layer ``number`` of a model; ``name`` begins the names of its norm and residual."""

    model: Model
    number: int = 0
    name: ClassVar[str] = "attention"
    shares: ClassVar[tuple[str, ...]] = ("ring", "ulysses", "allgather", "usp")
    """The kinds of context parallelism under which it can run."""
    needs: ClassVar[str] = ""
    """The key of a recipe's model without which it has no size."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The keys that it may have besides."""

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return type(self).__module__.rpartition(".")[2]

    def operators(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators on a rank with this share, in forward order."""
        name, place = self.name, self.model.norm_place
        before = norm(share, f"{name}_norm")
        return (
            grad_add(share, f"{name}_input") if place == "after" else before,
            *self.inner(share),
            *((norm(share, f"{name}_post_norm", branch=False),) if place != "before" else ()),
            residual(self.model, share, f"{name}_residual"),
        )

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators from the norm's output to the input of the residual add."""
        raise NotImplementedError

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank; by default the matrices, a bias and the norms."""
        model, norms = self.model, 2 if self.model.norm_place == "both" else 1
        return Parameters(
            linear=self.matrices(tp, ep, etp),
            row_bias=model.hidden * model.bias,
            norm=norms * norm_parameters(model),
        )

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements on one rank of the matrices that fp8 multiplies."""
        raise NotImplementedError

    def used(self) -> int:
        """Return the elements of all matrices that a token is multiplied with."""
        return self.matrices(1, 1, 1)

    def idle(self) -> int:
        """Return the parameters that a token does not use."""
        return 0

    def core(self, batch: int, sequence: int) -> float:
        """Return the forward FLOPs beside those of the matrices."""
        return 0.0

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return what recomputed ``modules`` run again: FLOPs of the core, elements of matrices."""
        return 0.0, 0

    def input_gradients(self, share: Share) -> float:
        """Return the bytes of gradients that the backward holds at once inside the part."""
        return 0.0


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
