"""Attention that the ranks of a context-parallel group compute together.

Ulysses (arXiv:2309.14509) exchanges parts of the sequence for heads, so that each rank runs a plain
core. In ring attention (arXiv:2310.01889) the queries stay, and keys and values go round; kernels
and hops are those of zhuzilin/ring-flash-attention, which merges each block's output in fp32 and
sends gradients of keys and values round in fp32. With allgather (Llama 3, arXiv:2407.21783, section
3.3.2) keys and values are gathered whole, and again in the backward, as Transformer Engine does.
"""

from __future__ import annotations

from dataclasses import replace

from sim.graph import Compute
from sim.model import blocks
from sim.model.blocks import STATISTICS, AttentionBlock, Mask
from sim.model.operators import Launch, Operator, Share, Transfer, memory

FULL = 4  # bytes of an fp32 number: merged outputs, gradients that go round


def inner(share: Share) -> Share:
    """Return the share of the core between Ulysses' exchanges: fewer heads, a longer sequence."""
    n = share.context.ulysses
    return replace(
        share,
        sequence=share.sequence * n,
        heads=share.heads // n,
        kv_heads=max(1, share.kv_heads // n),
        context=share.context._replace(ulysses=1),
    )


def to_heads(share: Share) -> tuple[Operator, ...]:
    """Return all-to-alls of queries, keys and values, between kernels that reorder the pieces.

    KV heads are copied first where the group has more ranks than KV heads.
    """
    q, kv = _bytes(share)
    n, few = share.context.ulysses, share.kv_heads < share.context.ulysses
    spread = kv * n / share.kv_heads if few else kv
    ordered = memory(share, "elementwise", 2 * (q + 2 * spread))
    copies = memory(share, "elementwise", 2 * (kv + spread))
    return (
        *((_both("kv_copies", copies),) if few else ()),
        _both("heads_pack", ordered),
        Operator("query", edge="heads", buffer=q),
        Operator("key", edge="heads", buffer=spread),
        Operator("value", edge="heads", buffer=spread),
        _both("heads_unpack", ordered),
    )


def to_sequence(share: Share, kept: bool) -> tuple[Operator, ...]:
    """Return the all-to-all of the output, between kernels that reorder the pieces.

    ``kept`` says that the core's backward needs the output as it was before the exchange.
    """
    q, _ = _bytes(share)
    ordered = memory(share, "elementwise", 2 * q)
    return (
        _both("output_pack", ordered, q if kept else 0.0),
        Operator("attention_output", edge="heads", buffer=q),
        _both("output_unpack", ordered),
    )


def ring(share: Share) -> tuple[Operator, ...]:
    """Return ring attention: a kernel per block of keys, beside the hop that brings the next."""
    c = share.context
    steps = blocks.ring(c.placement, c.ring, c.rank, share.sequence)
    kept = float(STATISTICS * share.rows * share.heads)
    work = _ring_forward(share, steps), _ring_backward(share, steps)
    return (Operator("attention", *work, saved=kept, core=True),)


def _ring_forward(share: Share, steps: list[AttentionBlock | None]) -> tuple[Launch, ...]:
    out, sends = list[Launch](), list[Transfer]()
    for i, block in enumerate(steps):
        if i + 1 < len(steps):
            sends.append(_hop(share, "attention_kv_hop", i + 1, share.element))
        if block is not None:
            needs = (f"attention_kv_hop_{i}",) if i else ()
            out.append(Launch("attention", blocks.forward(share, block), tuple(sends), needs))
            out.append(Launch("attention_merge", _merge(share, block, first=i == 0)))
            sends = []
    q, _ = _bytes(share)
    return (*out, _last(share, "attention_cast", q, sends))


def _ring_backward(share: Share, steps: list[AttentionBlock | None]) -> tuple[Launch, ...]:
    """List the backward's kernels; gradients follow their keys and reach their owner at the end."""
    out, sends = list[Launch](), list[Transfer]()
    for i, block in enumerate(steps):
        if i + 1 < len(steps):
            sends.append(_hop(share, "attention_kv_hop", i + 1, share.element))
        if block is not None:
            needs = (f"attention_kv_hop_{i}",) if i else ()
            work = blocks.backward(share, block)
            out.append(Launch("attention_backward", work, tuple(sends), needs))
            out += _sum_gradients(share, block, i)
            sends = []
        sends.append(_hop(share, "attention_kv_grad_hop", i, FULL))
    q, kv = _bytes(share)
    return (*out, _last(share, "attention_grad_cast", q + 2 * kv, sends))


def _hop(share: Share, name: str, i: int, element: int) -> Transfer:
    """Return the transfer of keys and values, or of their gradients, to the next rank."""
    size = 2 * _bytes(share)[1] / share.element * element
    return Transfer(f"{name}_{i}", share.context.axes[1], "ring_exchange", size)


def _last(share: Share, name: str, size: float, sends: list[Transfer]) -> Launch:
    """Return the kernel that casts ``size`` bytes of results from fp32 after the last hop."""
    work = memory(share, "elementwise", size + size / share.element * FULL)
    return Launch(name, work, tuple(sends), tuple(send.name for send in sends[-1:]))


def _merge(share: Share, block: AttentionBlock, first: bool) -> Compute:
    """Return the kernel that merges a block's output and statistics into those of earlier blocks.

    It rescales both, as ``update_out_and_lse`` of ring-flash-attention does.
    """
    q, _, statistics = blocks.sizes(share, block)
    merged = q / share.element * FULL
    times = 1 if first else 2
    return memory(share, "elementwise", q + times * merged + (times + 1) * statistics)


def _sum_gradients(share: Share, block: AttentionBlock, i: int) -> list[Launch]:
    """List the kernels that add a block's gradients.

    Those of the queries are added to the queries' own, those of keys and values to what has arrived
    with the keys.
    """
    q, kv, _ = blocks.sizes(share, block)
    times = 2 if i else 1
    query = memory(share, "elementwise", q + times * q / share.element * FULL)
    keys = memory(share, "elementwise", 2 * (kv + times * kv / share.element * FULL))
    needs = (f"attention_kv_grad_hop_{i - 1}",) if i else ()
    return [
        Launch("attention_query_grad_add", query),
        Launch("attention_kv_grad_add", keys, needs=needs),
    ]


def gathered(share: Share, mask: Mask) -> tuple[Operator, ...]:
    """Return attention over gathered keys and values: a kernel per run of queries.

    Gradients of keys and values are reduce-scattered. A rank keeps its own keys and values only,
    which the backward gathers again.
    """
    c = share.context
    runs = blocks.gathered(c.placement, c.ring, c.rank, share.sequence, mask)
    whole = _bytes(share)[1] * c.ring
    again = tuple(Transfer(f"{x}_again", c.axes[1], "all_gather", whole) for x in ("key", "value"))
    back = [launch for block in runs for launch in _run_backward(share, block, len(runs) > 1)]
    back[0] = back[0]._replace(sends=again, needs=tuple(t.name for t in again))
    return (
        Operator("key", edge="keys", buffer=whole, core=True),
        Operator("value", edge="keys", buffer=whole, core=True),
        Operator(
            "attention",
            tuple(Launch("attention", blocks.forward(share, block)) for block in runs),
            tuple(back),
            saved=float(STATISTICS * share.rows * share.heads),
            core=True,
        ),
    )


def _run_backward(share: Share, block: AttentionBlock, added: bool) -> list[Launch]:
    kv = blocks.sizes(share, block)[1]
    add = Launch("attention_kv_grad_add", memory(share, "elementwise", 3 * 2 * kv))
    return [Launch("attention_backward", blocks.backward(share, block)), *([add] if added else [])]


def _both(name: str, work: Compute, saved: float = 0.0) -> Operator:
    """Return an operator with the same traffic in the forward and in the backward."""
    return Operator(name, (Launch(name, work),), (Launch(f"{name}_backward", work),), saved=saved)


def _bytes(share: Share) -> tuple[float, float]:
    """Return the bytes of the queries, and of the keys (or values), on this rank."""
    q, kv, _ = blocks.sizes(share, blocks.causal(share.sequence))
    return q, kv
