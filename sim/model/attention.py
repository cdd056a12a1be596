"""Which kernels attention runs between its two linears: one flash kernel, or unfused ones.

The core keeps what Korthikanti et al. 2022, section 4.1, count: queries, keys and values, and if
unfused also the softmax's output, the mask of its dropout and the dropout's output. Where ranks
share a sequence, :mod:`sim.model.context` has the core or the exchanges around it.
"""

from __future__ import annotations

from schedules.input_error import InputError
from sim.graph import Compute
from sim.model import blocks, context
from sim.model.blocks import Mask
from sim.model.kernel_choice import ROPE
from sim.model.operators import Launch, Operator, Share, gemm, memory, sequence
from sim.model.sizes import Model


def attention(model: Model, share: Share, mask: Mask) -> tuple[Operator, ...]:
    """Return the operators from the output of the QKV linear to the input of the projection.

    Raises InputError for unfused attention on ranks that each hold part of a sequence.
    """
    rotated = (rotary(share),) if model.position == "rope" else ()
    own = context.inner(share)
    within = (inputs(model, own), *_core(model, own, mask))
    if share.context.ulysses > 1:
        kept = model.attention != "unfused"  # its backward reads its output as it left the kernel
        within = (*context.to_heads(share), *within, *context.to_sequence(share, kept))
    return (*rotated, *within)


def _core(model: Model, share: Share, mask: Mask) -> tuple[Operator, ...]:
    if model.attention != "unfused":
        if share.context.gather:
            return context.gathered(share, mask)
        return context.ring(share) if share.context.ring > 1 else flash(share, mask)
    if share.context.ring > 1:
        raise InputError(
            "unfused attention needs the whole sequence; ring and allgather need flash"
        )
    return unfused(model, share)


def rotary(share: Share) -> Operator:
    """Return the rotary embedding of queries and keys, which keeps nothing for the backward."""
    elements = share.rows * (share.heads + share.kv_heads) * share.head_dim
    if share.kernels.rope == "complex":
        back = sequence(share, "elementwise", "rotary_backward", ROPE, elements)
        return Operator("rotary", sequence(share, "elementwise", "rotary", ROPE, elements), back)
    work = memory(share, "elementwise", 2 * elements * share.element)
    return Operator("rotary", (Launch("rotary", work),), (Launch("rotary_backward", work),))


def inputs(model: Model, share: Share) -> Operator:
    """Return the operator that keeps queries, keys and values for the core.

    Unfused attention also joins their gradients. Kernels that are not fused need keys and values as
    separate copies. If there are as many heads of keys as of queries, the queries are a view, which
    keeps the joint tensor alive too.
    """
    q, kv = _sizes(share)
    joined = Launch("qkv_grad_join", memory(share, "elementwise", 2 * (q + 2 * kv)))
    backward = (joined,) if model.attention == "unfused" else ()
    again = 0.0 if model.fused or share.kv_heads < share.heads else 2 * kv
    return Operator("attention_inputs", backward=backward, saved=q + 2 * kv + again)


def flash(share: Share, mask: Mask) -> tuple[Operator, ...]:
    """Return one flash kernel each way, over the pairs that the mask leaves.

    The backward computes the scores again.
    """
    whole = blocks.causal(share.sequence, mask)
    return (
        Operator(
            "attention",
            (Launch("attention", blocks.forward(share, whole)),),
            (Launch("attention_backward", blocks.backward(share, whole)),),
            saved=float(blocks.STATISTICS * share.rows * share.heads),
            core=True,
        ),
    )


def unfused(model: Model, share: Share) -> tuple[Operator, ...]:
    """Return scores, masked softmax, dropout and context, each a kernel over the whole square."""
    core = square(share, model.dropout, share.head_dim, share.head_dim)
    return (*_repeated(share), *core)


def square(share: Share, dropout: float, keys: int, values: int) -> tuple[Operator, ...]:
    """Return the kernels of unfused attention for heads of these widths of keys and values.

    There is already one key and one value per query head.
    """
    s, batch = share.sequence, share.batch * share.heads
    size = float(batch * s * s * share.element)
    softmax = memory(share, "softmax", 2 * size)
    to_keys, to_values = (gemm(share, s, width, s, batch=batch) for width in (keys, values))
    scores = Operator(
        "scores",
        (Launch("scores", gemm(share, s, s, keys, batch=batch)),),
        (Launch("scores_query_grad", to_keys), Launch("scores_key_grad", to_keys)),
        core=True,
    )
    weights = Operator(
        "softmax",
        (Launch("softmax", softmax),),
        (Launch("softmax_backward", memory(share, "softmax", 3 * size)),),
        saved=size,
        core=True,
    )
    dropped = (_dropout(share, size),) if dropout > 0 else ()
    return (scores, weights, *dropped, _context(share, values, to_values))


def _context(share: Share, values: int, to_values: Compute) -> Operator:
    """Multiply the weights by the values, and put the result in the order of the tokens."""
    s, batch = share.sequence, share.batch * share.heads
    rows = 2 * float(share.rows * share.heads * values * share.element)
    to_square = gemm(share, s, s, values, batch=batch)
    return Operator(
        "context",
        (
            Launch("context", to_values),
            Launch("context_layout", memory(share, "elementwise", rows)),
        ),
        (Launch("context_weight_grad", to_square), Launch("context_value_grad", to_values)),
        core=True,
    )


def _dropout(share: Share, square: float) -> Operator:
    mask = square / share.element
    work = memory(share, "elementwise", 2 * square + mask)
    return Operator(
        "attention_dropout",
        (Launch("attention_dropout", work),),
        (Launch("attention_dropout_backward", work),),
        saved=mask + square,
        core=True,
    )


def _repeated(share: Share) -> tuple[Operator, ...]:
    """Copy grouped keys and values once per query head; the backward sums the copies."""
    if share.kv_heads == share.heads:
        return ()
    q, kv = _sizes(share)
    work = memory(share, "elementwise", 2 * (q + kv))
    launches = (Launch("repeat_kv", work),), (Launch("repeat_kv_backward", work),)
    return (Operator("repeat_kv", *launches, saved=2 * (q - kv), core=True),)


def _sizes(share: Share) -> tuple[float, float]:
    """Return the bytes of the queries, and those of the keys (or of the values)."""
    row = float(share.rows * share.head_dim * share.element)
    return row * share.heads, row * share.kv_heads
