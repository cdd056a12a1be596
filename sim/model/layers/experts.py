"""Which kernels a layer's experts run on one rank, as in Megatron-Core (all-to-all dispatcher).

Shared experts are a plain MLP before the others. The router scores all experts per token; tokens
are copied once per chosen expert in the experts' order (permute), sent to the experts' ranks
(dispatch), multiplied expert by expert (one grouped GEMM, or one GEMM each), sent back (combine)
and summed. Each
copy is multiplied by its probability in the activation, so that nothing is kept for the sum, as in
Megatron-Core since version 0.12. Losses that balance the load are too small to count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from math import fsum

from sim.graph import Compute
from sim.model.layers.dense import activation, around, mlp
from sim.model.operators import Launch, Operator, Share, gemm, grad_add, linear, memory
from sim.model.part import Part
from sim.model.sizes import Model, Parameters, mlp_matrices

SCORE = 4  # bytes of an fp32 score or probability
Matrix = tuple[int, int, int]


class Kind(Part):
    """Routed experts of width ``expert_ffn`` and shared ones that see every token."""

    name = "mlp"

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators of router, shared and routed experts."""
        return experts(self.model, share)

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank; it holds ``experts`` / ``ep`` of the experts."""
        model, width = self.model, self.model.expert_ffn // etp
        biases = (model.hidden + width * (2 if model.gated else 1)) * model.bias
        scores = model.experts * (model.hidden + model.bias)
        return (
            super()
            .parameters(tp, ep, etp)
            ._replace(
                linear=self._shared(tp),
                row_bias=0,
                replicated=scores + model.hidden * model.shared_gate,
                expert=self._routed(ep, etp) + model.experts // ep * biases,
            )
        )

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of all experts' matrices."""
        return self._shared(tp) + self._routed(ep, etp)

    def used(self) -> int:
        """Return the elements of the router and the experts that a token is sent to."""
        model = self.model
        width = (model.topk + model.shared_experts) * model.expert_ffn
        scores = model.experts + model.shared_gate
        return model.hidden * scores + mlp_matrices(model, width)

    def idle(self) -> int:
        """Return the parameters of the experts that a token is not sent to."""
        model = self.model
        one = self.parameters(1, 1, 1).expert // model.experts
        return (model.experts - model.topk) * one

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return all of it, or the shared experts, if they run again."""
        shared = self._shared(1) if "shared_experts" in modules else 0
        return 0.0, self.used() if "moe" in modules else shared

    def input_gradients(self, share: Share) -> float:
        """Return the larger of what is there at the second product and at the activation."""
        row = sum(share.routed) * share.element
        before, inner = float(row * share.hidden), float(row * share.expert_ffn)
        return around(self.model, before, inner)

    def _routed(self, ep: int, etp: int) -> int:
        model = self.model
        return model.experts // ep * mlp_matrices(model, model.expert_ffn // etp)

    def _shared(self, tp: int) -> int:
        model = self.model
        return mlp_matrices(model, model.shared_experts * model.expert_ffn // tp)


def experts(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return the operators from the output of the layer's second norm to the residual's input."""
    width = share.expert_ffn * (2 if model.gated else 1)
    local = len(share.routed)
    spread = local < model.experts or share.expert_ffn < model.expert_ffn
    several = spread and local > 1
    inward, outward = ("", "") if several else ("expert_column", "expert_row")
    rows = sum(share.routed)
    apart = share.kernels.experts == "sequential" and local > 1
    return (
        *_shared(model, share),
        *_router(model, share),
        _dispatch(share),
        *((_sort(share, "sort", "expert_column"),) if several else ()),
        _grouped(share, "expert_fc1", share.hidden, width, inward),
        activation(model, share, rows, share.expert_ffn, "expert_"),
        _grouped(share, "expert_fc2", share.expert_ffn, share.hidden, outward),
        *((_joined(share),) if apart else ()),
        *((_sort(share, "unsort", "expert_row"),) if several else ()),
        _combine(share),
        *((_sum(share),) if share.shared_ffn else ()),
    )


def _shared(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return the shared experts as one MLP; the router already keeps their input."""
    if not share.shared_ffn:
        return ()
    first, *rest = mlp(model, share, share.shared_ffn, "shared_")
    return (grad_add(share, "shared"), first._replace(saved=0.0), *rest)


def _sum(share: Share) -> Operator:
    """Return the kernel that adds the outputs of shared and routed experts."""
    work = memory(share, "elementwise", 3 * share.residual)
    return Operator("shared_sum", (Launch("shared_sum", work),))


def _router(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return the scores by a linear that no rank splits, softmax over all experts and top k.

    The linear also computes the gate of the shared experts, which their sum is multiplied by.
    The softmax's output is kept, and a byte per expert that says whether it is chosen.
    """
    scores = float(share.tokens * model.experts)
    softmax = memory(share, "softmax", scores * (share.element + SCORE))
    chosen = memory(share, "softmax", scores * (2 * SCORE + 1))  # probabilities and map written
    back = memory(share, "softmax", scores * (2 * SCORE + share.element))
    return (
        grad_add(share, "router"),
        linear(share, "router", share.hidden, model.experts + model.shared_gate, ""),
        Operator(
            "topk",
            (Launch("router_softmax", softmax), Launch("router_topk", chosen)),
            (Launch("router_softmax_backward", back),),
            saved=scores * (SCORE + 1),
        ),
    )


def _dispatch(share: Share) -> Operator:
    """Return the copies in the order of their experts, then sent; the backward sums the copies."""
    return _moved(share, "dispatch", "permute", ("gather", "scatter"))


def _combine(share: Share) -> Operator:
    """Return the copies sent back, then summed per token; the backward copies the gradient."""
    return _moved(share, "combine", "unpermute", ("scatter", "gather"))


def _moved(share: Share, edge: str, name: str, by: tuple[str, str]) -> Operator:
    row = share.hidden * share.element
    work = memory(share, "elementwise", (share.tokens + share.copies) * row)
    eager = "eager_" * (share.kernels.permute == "eager")
    forward, backward = (work._replace(by=eager + how) for how in by)
    launches = (Launch(name, forward),), (Launch(f"{name}_backward", backward),)
    return Operator(edge, *launches, edge=edge, buffer=share.exchanged * row)


def _sort(share: Share, name: str, edge: str) -> Operator:
    """Return the kernel that puts copies from several ranks in the experts' order, or back."""
    x = float(sum(share.routed) * share.hidden * share.element)
    by = "" if share.kernels.permute == "eager" else "gather"  # torch.cat copies whole chunks
    work = memory(share, "elementwise", 2 * x)._replace(by=by)
    launches = (Launch(name, work),), (Launch(f"{name}_backward", work),)
    return Operator(name, *launches, edge=edge, buffer=x)


def _joined(share: Share) -> Operator:
    """Return the kernel that puts the experts' outputs into one tensor, or their input gradients.

    They are apart where experts are multiplied one after the other (torch.cat of Megatron-Core's
    SequentialMLP, and of the gradients of its torch.split).
    """
    work = memory(share, "elementwise", 2.0 * sum(share.routed) * share.hidden * share.element)
    return Operator("join", (Launch("join", work),), (Launch("join_backward", work),))


def _grouped(share: Share, name: str, inputs: int, outputs: int, edge: str) -> Operator:
    """Return a linear of every expert of this rank over the expert's own tokens.

    Where none of them gets a token, its kernels are launched all the same and find no work.
    """
    rows = sum(share.routed)
    forward = _launched(share, [(m, outputs, inputs) for m in share.routed])
    backward = _launched(share, [(m, inputs, outputs) for m in share.routed])
    added = 2 * share.gradient
    weight = _launched(share, [(outputs, inputs, m) for m in share.routed], added)
    return Operator(
        name,
        tuple(Launch(name, work) for work in forward),
        tuple(Launch(f"{name}_dgrad", work) for work in backward),
        tuple(Launch(f"{name}_wgrad", work) for work in weight),
        saved=float(inputs * rows * share.element),
        edge=edge,
        buffer=float(rows * share.hidden * share.element),
    )


def _launched(
    share: Share, products: Sequence[Matrix], output: int | None = None
) -> tuple[Compute, ...]:
    """Return the kernels of many matrix products, one, or one for each product.

    A kernel is without work where its products are empty.
    """
    if share.kernels.experts == "sequential" and len(products) > 1:
        return tuple(work for one in products for work in _launched(share, [one], output))
    empty = Compute("grouped_gemm", 0.0, 0.0, (len(products), *products[0]), share.product)
    return tuple(grouped(share, products, output)) or (empty,)


def grouped(
    share: Share, products: Sequence[Matrix], output: int | None = None
) -> Iterator[Compute]:
    """Yield one kernel for many matrix products (m, n, k), without the empty ones; none if all are.

    Equal products are a batched GEMM. A ``grouped_gemm`` has a shape of (batch, m, n, k) for each
    run of equal ones, in turn.
    """
    runs = [
        gemm(share, *matrix, batch=len(list(same)), output=output)
        for matrix, same in groupby(sorted(products, reverse=True))
        if min(matrix) > 0
    ]
    if len(runs) == 1:
        yield runs[0]
    elif runs:
        shape = tuple(size for run in runs for size in run.shape)
        flops, moved = fsum(run.flops for run in runs), fsum(run.bytes for run in runs)
        yield Compute("grouped_gemm", flops, moved, shape, share.product)
