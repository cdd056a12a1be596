"""The two ends of the model: embedding on the first stage, head and loss on the last.

Both are split over the vocabulary (Megatron-LM, arXiv:1909.08053, section 3): looked-up rows are
partial and summed; logits stay split, and the cross-entropy reduces three fp32 numbers per token.
"""

from __future__ import annotations

from functools import cache

from sim.model.kernel_choice import FUSED_LOSS, FUSED_LOSS_BACKWARD, LOSS, LOSS_BACKWARD, Passes
from sim.model.layers import convolution
from sim.model.operators import Launch, Operator, Share, linear, memory, norm, sequence
from sim.model.sizes import Model

Ways = tuple[tuple[Launch, ...], tuple[Launch, ...], tuple[Launch, ...]]
LOGIT = 4  # bytes of a logit: Megatron computes the loss in fp32


@cache
def embedding(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return word embedding, positions and dropout; none for a residual network."""
    if model.resnet or not model.vocab:
        return ()
    learned = model.position == "learned"
    added = Launch("positions", memory(share, "elementwise", 3 * share.whole_residual))
    positions = Operator("positions", (added,) if learned else ())
    split = share.heads < model.heads
    return (_words(share, learned, split), positions, *_dropout(model, share))


@cache
def head(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return final norm, output matrix and vocabulary-parallel loss, or those of a ResNet."""
    if model.resnet:
        return convolution.head(model.resnet, share)
    if not model.vocab:
        return ()
    return (
        norm(share, "final_norm", branch=False),
        linear(share, "head", share.hidden, share.vocab, "column"),
        *_loss(model, share),
    )


def _loss(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return the loss; with a split vocabulary PyTorch's is Megatron's too.

    PyTorch's keeps the fp32 log-probabilities; a fused kernel keeps the gradient in place of the
    logits (Transformer Engine's and Liger's).
    """
    whole, how = share.heads == model.heads, share.kernels.loss
    n = float(share.rows * share.vocab)
    if how == "fused":
        ways, kept = _passes(share, FUSED_LOSS, FUSED_LOSS_BACKWARD, n), share.element * n
        return (Operator("loss", *ways, kept, *(() if whole else _reduced(share))),)
    if how == "torch" and whole:
        return (Operator("loss", *_passes(share, LOSS, LOSS_BACKWARD, n), LOGIT * n),)
    return cross_entropy(share)


def _passes(share: Share, forward: Passes, backward: Passes, n: float) -> Ways:
    one, other = (sequence(share, "cross_entropy", "loss", p, n) for p in (forward, backward))
    return one, other, ()


def _reduced(share: Share) -> tuple[str, float]:
    """Return the edge of a split vocabulary and its bytes: three fp32 numbers per token at once."""
    return "vocabulary", 3.0 * LOGIT * share.rows


def cross_entropy(share: Share) -> tuple[Operator, ...]:
    """Return Megatron's kernels over this rank's logits, with an all-reduce after each of three.

    Logits become batch-first and fp32; their maximum is found and subtracted; the target's logit is
    picked; exponentials are taken in place, summed and divided into the softmax, which is kept.
    """
    n, e = float(share.rows * share.vocab), share.element
    turned = [("layout", 2 * e)] if share.batch > 1 else []
    number = LOGIT * float(share.rows)  # bytes of one fp32 number per token

    def kernels(*bytes_per_logit: tuple[str, int]) -> tuple[Launch, ...]:
        return tuple(
            Launch(f"loss_{name}", memory(share, "cross_entropy", moved * n))
            for name, moved in bytes_per_logit
        )

    largest = kernels(*turned, ("to_fp32", e + LOGIT), ("max", LOGIT))
    exponentials = kernels(("exp", 2 * LOGIT), ("sum", LOGIT))
    back = kernels(("backward", 2 * LOGIT), ("from_fp32", LOGIT + e), *turned)
    return (
        Operator("loss_max", largest, edge="vocabulary", buffer=number),
        Operator("loss_target", kernels(("subtract", 2 * LOGIT)), edge="vocabulary", buffer=number),
        Operator("loss_sum", exponentials, edge="vocabulary", buffer=number),
        Operator("loss", kernels(("softmax", 2 * LOGIT)), back, saved=LOGIT * n),
    )


def logits(share: Share) -> tuple[float, float]:
    """Return the bytes of the logits as the output matrix makes them, and in fp32.

    Megatron's loss copies 16-bit logits to fp32 in its forward, and its backward's fp32 gradient to
    16 bits (``calculate_logits_max`` in core/tensor_parallel/cross_entropy.py; autograd casts the
    gradient); both copies exist at once. fp32 logits are used in place.
    """
    n = float(share.rows * share.vocab)
    return share.element * n, LOGIT * n


def _words(share: Share, learned: bool, split: bool) -> Operator:
    """Return the lookup of rows, with those of other ranks set to zero.

    The backward adds rows into a dense gradient, and that to the main gradient. Megatron-LM
    scatters the ranks' sums (``reduce_scatter_embeddings``) only where no positions are learned.
    """
    rows, table = share.whole_residual, share.vocab * share.hidden
    dense = memory(share, "elementwise", table * (2 * share.element + 2 * share.gradient))
    dense = dense._replace(shape=(share.vocab, share.hidden))
    masked = [Launch("embedding_mask", memory(share, "elementwise", 2 * rows))] if split else []
    scatters = [Launch("embedding_wgrad", memory(share, "embedding", 3 * rows))]
    if learned:
        scatters.insert(0, Launch("positions_wgrad", memory(share, "embedding", 3 * rows)))
    return Operator(
        "embedding",
        (Launch("embedding", memory(share, "embedding", 2 * rows)), *masked),
        weight=(*scatters, Launch("embedding_accumulate", dense)),
        edge="summed" if learned else "row",
        buffer=rows,
    )


def _dropout(model: Model, share: Share) -> tuple[Operator, ...]:
    if model.dropout == 0:
        return ()
    mask = float(share.tokens * share.hidden)
    work = memory(share, "elementwise", 2 * share.residual + mask)
    kernels = (Launch("embedding_dropout", work),), (Launch("embedding_dropout_backward", work),)
    return (Operator("embedding_dropout", *kernels, saved=mask),)
