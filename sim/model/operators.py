"""What an operator of the model is: its kernels each way, their sizes on one rank, what it keeps.

Operators are data, without streams or time; :mod:`sim.model.layer` lists those of a layer. Every
kernel takes its sizes from a :class:`Share`, which determines how it splits: over ``heads`` or
``ffn`` (tensor parallel) or over ``tokens`` (sequence parallel). Strategies rewrite the share, not
the kernels. An operator whose input or output crosses into or out of a tensor-parallel region names
that ``edge``; the strategy in use decides which collectives it needs.

The kernels are those of Megatron-LM: bias, dropout and residual fused, bias and activation fused,
weight gradients added to main gradients by their GEMM. ``flops`` counts matrix arithmetic only, as
the published formulas do; all other kernels are limited by their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sim.graph import Compute
from sim.model import kernel_choice
from sim.model.kernel_choice import USUAL, Kernels, Passes
from sim.model.sizes import BYTES, Model, padded_vocab


class Context(NamedTuple):
    """How a rank shares attention with ranks that hold other parts of the sequence.

    Runs of ``ulysses`` ranks exchange sequence for heads. ``ring`` such runs each hold a block of
    the sequence, whose keys and values go round between them or are gathered.
    """

    ulysses: int = 1
    ring: int = 1
    rank: int = 0  # index of this rank's block
    gather: bool = False
    placement: str = "contiguous"  # of the blocks: contiguous | zigzag | striped
    axes: tuple[str, str] = ("cp", "cp")  # mesh axes of the exchange and of the ring


ALONE = Context()


class Linears(Protocol):
    """How linears run otherwise than in the dtype of the rest."""

    def operators(self, operators: Sequence[Operator], share: Share) -> tuple[Operator, ...]:
        """Return the operators of a layer with their linears run so."""


@dataclass(frozen=True)
class Share:
    """What one rank computes: a size along every axis that a strategy may split."""

    batch: int
    sequence: int
    hidden: int
    tokens: int  # rows of norms, dropouts and residuals; other kernels have all ``rows``
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    dtype: str
    element: int  # bytes of an activation or weight
    gradient: int  # bytes of a main gradient
    context: Context = ALONE
    replicas: int = 1  # ranks that share the statistics of a batch norm
    shared_ffn: int = 0  # inner width of the shared experts together
    expert_ffn: int = 0  # inner width of one routed expert
    routed: tuple[int, ...] = ()  # tokens for each expert of this rank, from its whole group
    copies: float = 0.0  # copies of this rank's own tokens, one for each expert that takes it
    exchanged: float = 0.0  # tokens in the buffer of an all-to-all, of the most loaded rank
    linears: Linears | None = None  # how linears of the layers run; None: in ``dtype``
    matmul: str = ""  # dtype of matrix products, if not ``dtype``
    attention: str = ""  # kernel of fused attention: flash2, cudnn, ...; "": the GPU's own choice
    kernels: Kernels = USUAL  # who runs what else in how many kernels

    @property
    def product(self) -> str:
        """The dtype in which matrices are multiplied; in memory they have ``dtype``."""
        return self.matmul or self.dtype

    @property
    def rows(self) -> int:
        """Rows of a GEMM: all tokens of the microbatch."""
        return self.batch * self.sequence

    @property
    def residual(self) -> float:
        """Bytes of this rank's part of the residual stream."""
        return float(self.tokens * self.hidden * self.element)

    @property
    def whole_residual(self) -> float:
        """Bytes of the whole residual stream (A of the formulas)."""
        return float(self.rows * self.hidden * self.element)


class Transfer(NamedTuple):
    """A collective that starts beside a kernel."""

    name: str
    axis: str
    collective: str
    bytes: float


class Launch(NamedTuple):
    """A kernel and its name; ``sends`` start beside it, and what it ``needs`` has ended before."""

    name: str
    work: Compute
    sends: tuple[Transfer, ...] = ()
    needs: tuple[str, ...] = ()  # names of transfers


class Operator(NamedTuple):
    """Kernels that belong together: forward, input gradient, weight gradient."""

    name: str
    forward: tuple[Launch, ...] = ()
    backward: tuple[Launch, ...] = ()
    weight: tuple[Launch, ...] = ()
    saved: float = 0.0  # bytes kept from forward until backward
    edge: str = ""  # column (into a split region), row (out of it), vocabulary, ...; see strategies
    buffer: float = 0.0  # bytes of the whole tensor that crosses the edge
    core: bool = False  # part of the attention core, which selective recomputation runs again
    gathered: float = 0.0  # bytes that all-gathers at the edge carry; 0: those of the buffer

    def crossing(self, collective: str) -> float:
        """Return the bytes that a collective of this kind carries at the edge."""
        return self.gathered if self.gathered and collective == "all_gather" else self.buffer


def whole(
    model: Model,
    micro_batch: int,
    dtype: str,
    grad_dtype: str,
    *,
    matmul: str = "",
    tp: int = 1,
    dp: int = 1,
) -> Share:
    """Return the share of a rank that splits nothing with others.

    The vocabulary is padded for ``tp``; ``dp`` replicas share the statistics of synchronised norms.
    """
    return Share(
        batch=micro_batch,
        sequence=model.sequence,
        hidden=model.hidden,
        tokens=micro_batch * model.sequence,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        ffn=model.ffn,
        vocab=padded_vocab(model, tp),
        dtype=dtype,
        element=BYTES[dtype],
        gradient=BYTES[grad_dtype],
        replicas=dp if model.norm == "sync_batch" else 1,
        matmul=matmul,
        attention=model.attention,
        kernels=model.kernels,
    )


def finished(operators: Sequence[Operator], share: Share) -> tuple[Operator, ...]:
    """Return the operators of a layer as its linears run on this share."""
    return share.linears.operators(operators, share) if share.linears else tuple(operators)


def gemm(
    share: Share, m: int, n: int, k: int, *, batch: int = 1, output: int | None = None
) -> Compute:
    """Return a matrix product; ``output`` is the bytes of traffic per element of the result."""
    written = share.element if output is None else output
    moved = share.element * (m * k + k * n) + written * m * n
    return Compute(
        "gemm", 2.0 * batch * m * n * k, float(batch * moved), (batch, m, n, k), share.product
    )


def memory(share: Share, kind: str, moved: float) -> Compute:
    """Return a kernel whose time is that of the ``moved`` bytes that it reads and writes."""
    return Compute(kind, 0.0, float(moved), (), share.dtype)


def sequence(
    share: Share, kind: str, name: str, passes: Passes, elements: float
) -> tuple[Launch, ...]:
    """Return PyTorch's operators, one kernel each, over tensors of so many ``elements``."""
    return tuple(
        Launch(f"{name}_{what}", memory(share, kind, size * elements))
        for what, size in kernel_choice.moved(passes, share.element)
    )


def linear(
    share: Share, name: str, inputs: int, outputs: int, edge: str, bias: bool = False
) -> Operator:
    """Return a linear, which is column-parallel, row-parallel or (with no ``edge``) not split.

    ``bias`` adds kernels for a bias that is not fused into what follows. The weight gradient is
    added to the main gradient, which is read and written. A column-parallel linear keeps its input
    as the residual stream has it, which sequence parallelism splits; a linear that is not split at
    all has only that part of the tokens.
    """
    rows = share.rows if edge else share.tokens
    out = outputs * rows * share.element
    forward = [Launch(name, gemm(share, rows, outputs, inputs))]
    added = gemm(share, outputs, inputs, rows, output=2 * share.gradient)
    weight = [Launch(f"{name}_wgrad", added)]
    if bias:
        forward.append(Launch(f"{name}_bias", memory(share, "elementwise", 2 * out)))
        weight.append(Launch(f"{name}_bias_grad", memory(share, "elementwise", out)))
    kept = rows if edge == "row" else share.tokens
    crossing = inputs if edge == "column" else outputs
    return Operator(
        name,
        tuple(forward),
        (Launch(f"{name}_dgrad", gemm(share, rows, inputs, outputs)),),
        tuple(weight),
        saved=float(inputs * kept * share.element),
        edge=edge,
        buffer=float(rows * crossing * share.element) if edge else 0.0,
    )


def norm(share: Share, name: str, branch: bool = True, width: int = 0) -> Operator:
    """Return a layer or RMS norm, of ``width`` columns if given and else of all.

    Where a residual branches off (``branch``), the gradients of both branches are added. PyTorch's
    operators keep an fp32 copy of the input and the output before the weight.
    """
    elements = float(share.tokens * (width or share.hidden))
    x = elements * share.element
    forward: tuple[Launch, ...] = (Launch(name, memory(share, "norm", 2 * x)),)
    back = memory(share, "norm", 3 * x)._replace(by="norm_backward")
    backward: tuple[Launch, ...] = (Launch(f"{name}_backward", back),)
    if share.kernels.norm == "eager":
        forward = sequence(share, "elementwise", name, kernel_choice.NORM, elements)
        passes = kernel_choice.NORM_BACKWARD
        backward = sequence(share, "elementwise", f"{name}_backward", passes, elements)
    added = Launch(f"{name}_grad_add", memory(share, "elementwise", 3 * x))
    kept = x + elements * kernel_choice.WIDE * (share.kernels.norm == "eager")
    return Operator(name, forward, (*backward, *[added] * branch), saved=kept)


def grad_add(share: Share, name: str) -> Operator:
    """Return the sum of two gradients of the residual stream's size, for a tensor used twice."""
    work = memory(share, "elementwise", 3 * share.residual)
    return Operator(name, backward=(Launch(f"{name}_grad_add", work),))
