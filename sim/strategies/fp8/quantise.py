"""Linears in fp8: their GEMMs, the casts of their operands, what is kept and what is gathered.

It follows Transformer Engine's Linear and LayerNormLinear (transformer_engine/pytorch/module/): the
input is cast before the sequence-parallel all-gather, and so is the gradient of a row-parallel
linear's output, so that gathers carry fp8; the input is kept for the weight gradient in fp8. Where
products need the reduced index as the inner one (Hopper), tensors have a transposed copy: the
kernel that casts writes it, or, for gathered tensors, one more kernel. Results are as wide as
without fp8.

Only linears of layers are rewritten, grouped ones too; the router, attention and the head are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.graph import Compute
from sim.model.operators import Launch, Operator, Share, memory
from sim.strategies.fp8.precision import Fp8

HIGH = ("router",)  # linears that stay as they are
MAXIMUM = 4.0  # bytes of one maximum
PRODUCTS = ("gemm", "grouped_gemm")


class Elements(NamedTuple):
    """Elements of a kernel's operands and result, summed over its products.

    ``left`` is rows × reduced index, ``right`` reduced index × columns, ``result`` rows × columns.
    """

    left: int
    right: int
    result: int


def elements(work: Compute) -> Elements:
    """Return the elements of a GEMM or grouped GEMM.

    >>> elements(Compute("grouped_gemm", 0.0, 0.0, (2, 3, 5, 7, 1, 4, 5, 7)))
    Elements(left=70, right=105, result=50)
    """
    s = work.shape
    runs = list(zip(s[::4], s[1::4], s[2::4], s[3::4], strict=True))
    return Elements(
        sum(batch * m * k for batch, m, _, k in runs),
        sum(batch * n * k for batch, _, n, k in runs),
        sum(batch * m * n for batch, m, n, _ in runs),
    )


def is_linear(op: Operator) -> bool:
    """Return whether an operator of a layer is a linear that runs in fp8."""
    products = (launch.work.kind in PRODUCTS for launch in (*op.weight, *op.forward))
    return op.name not in HIGH and bool(op.weight and op.forward) and any(products)


class Quantised(NamedTuple):
    """What :class:`sim.model.operators.Share` asks of its ``linears``."""

    fp8: Fp8

    def operators(self, operators: Sequence[Operator], share: Share) -> tuple[Operator, ...]:
        """Return the operators of a layer with their linears in fp8."""
        out = list[Operator]()
        for op in operators:
            if not is_linear(op):
                out.append(op)
                continue
            fused = self.fp8.fuses and bool(out) and _is_norm(out[-1])
            linear = _Linear(op, share, self.fp8, fused)
            if linear.fused:
                out[-1] = linear.norm(out[-1])
            out += linear.operators()
        return tuple(out)


def _is_norm(op: Operator) -> bool:
    return len(op.forward) == 1 and op.forward[0].work.kind == "norm"


class _Linear:
    """One linear on one rank."""

    def __init__(self, op: Operator, share: Share, fp8: Fp8, fused: bool) -> None:
        self.op, self.share, self.fp8 = op, share, fp8
        products = (launch.work for launch in op.forward if launch.work.kind in PRODUCTS)
        self.size = Elements(*map(sum, zip(*map(elements, products), strict=True)))
        split = share.tokens < share.rows
        self.part = share.tokens / share.rows if split else 1.0
        self.gathers_input = split and op.edge == "column"
        self.gathers_gradient = split and op.edge == "row"
        self.fused = fused and (fp8.gather or not self.gathers_input)

    def norm(self, op: Operator) -> Operator:
        """Return the norm before the linear, which writes fp8."""
        (launch,) = op.forward
        copies = 2 if self.fp8.both_ways else 1
        less = self._kept * (self.share.element - copies * self.fp8.element)
        work = launch.work._replace(bytes=launch.work.bytes - less)
        return op._replace(forward=(launch._replace(work=work),))

    @property
    def _kept(self) -> float:
        """Elements of this rank's own part of the input."""
        return self.size.left * (self.part if self.gathers_input else 1.0)

    def operators(self) -> tuple[Operator, ...]:
        """Return the cast of the input, the linear, and the cast of its output's gradient."""
        before = after = tuple[Operator, ...]()
        op, name = self.op, self.op.name
        forward, backward, weight = (
            tuple(self._product(launch) for launch in launches)
            for launches in (op.forward, op.backward, op.weight)
        )
        early = self.fp8.gather and self.gathers_input
        if early and not self.fused:
            before = self._apart(name, self._kept, "amax")
        elif not self.fused:
            forward = (*self._cast(name, self.size.left, apart=False), *forward)  # after a gather
        if self.fp8.gather and self.gathers_gradient:
            after = self._apart(f"{name}_grad", self.size.result * self.part, "grad_amax")
        else:
            backward = (*self._cast(f"{name}_grad", self.size.result, apart=False), *backward)
        changed = op._replace(
            forward=forward,
            backward=backward,
            weight=(*self._turned(), *weight),
            saved=op.saved if self._again else self._kept * self.fp8.element,
            gathered=self._gathered(),
        )
        return (*before, changed, *after)

    @property
    def _again(self) -> bool:
        """Whether the input is gathered and kept in 16 bits, and later cast once more."""
        return self.gathers_input and not self.fp8.gather

    def _gathered(self) -> float:
        """Return the bytes of all-gathers at the edge; 0 means those of the buffer."""
        if not self.fp8.gather or not (self.gathers_input or self.gathers_gradient):
            return 0.0
        crossing = self.size.left if self.gathers_input else self.size.result
        return self.op.buffer - crossing * (self.share.element - self.fp8.element)

    def _product(self, launch: Launch) -> Launch:
        work = launch.work
        if work.kind not in PRODUCTS:
            return launch
        if not work.bytes:  # experts without tokens
            return launch._replace(work=work._replace(dtype="fp8"))
        left, right, _ = elements(work)
        narrower = (left + right) * (self.share.element - self.fp8.element)
        return launch._replace(work=work._replace(bytes=work.bytes - narrower, dtype="fp8"))

    def _cast(self, name: str, count: float, apart: bool) -> tuple[Launch, ...]:
        """Return the kernels that cast a tensor.

        One that is cast ``apart`` is transposed after its gather.
        """
        copies = 2 if self.fp8.both_ways or (self.fp8.transpose and not apart) else 1
        element = self.share.element
        work = memory(self.share, "elementwise", count * (element + copies * self.fp8.element))
        work = work._replace(by=self.fp8.kernel)
        return (*self._maximum(name, count), Launch(f"{name}_quantise", work))

    def _maximum(self, name: str, count: float) -> tuple[Launch, ...]:
        if self.fp8.recipe != "tensorwise":
            return ()
        work = memory(self.share, "elementwise", count * self.share.element)
        return (Launch(f"{name}_amax", work),)

    def _apart(self, name: str, count: float, edge: str) -> tuple[Operator, ...]:
        """Return the cast as operators of their own, with a gather between them and the product.

        Current scaling needs one maximum for all parts (``with_amax_reduction`` of Transformer
        Engine's Float8CurrentScalingQuantizer).
        """
        *largest, cast = self._cast(name, count, apart=True)
        if edge == "amax":
            found = Operator(f"{name}_amax", tuple(largest), edge=edge, buffer=MAXIMUM)
            return (*((found,) if largest else ()), Operator(f"{name}_quantise", (cast,)))
        found = Operator(f"{name}_amax", (), tuple(largest), edge=edge, buffer=MAXIMUM)
        return (Operator(f"{name}_quantise", (), (cast,)), *((found,) if largest else ()))

    def _turned(self) -> tuple[Launch, ...]:
        """Return the kernels before the weight gradient that make the missing transposed copies."""
        name, fp8 = self.op.name, self.fp8
        if self._again:
            return self._cast(name, self.size.left, apart=False)
        if fp8.both_ways or not fp8.transpose:
            return ()
        late = self.gathers_input or self.fused
        turned = [(name, self.size.left)] if late else []
        if fp8.gather and self.gathers_gradient:
            turned.append((f"{name}_grad", self.size.result))
        return tuple(
            Launch(f"{which}_transpose", memory(self.share, "elementwise", 2.0 * count))
            for which, count in turned
        )
