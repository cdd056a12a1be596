"""Which blocks of queries meet which blocks of keys under a causal mask, and what each costs.

Ranks that share a sequence hold parts of it by one of three placements: contiguous (one run of
tokens each), zigzag (2 N runs, rank i has runs i and 2 N - 1 - i) or striped (every N-th token,
Striped Attention, arXiv:2311.09431). Counted are pairs of a query and a key that the mask leaves,
those on the diagonal as halves, so that a whole sequence of s has s² / 2.
"""

from __future__ import annotations

from typing import NamedTuple

from schedules.input_error import InputError
from sim.graph import Compute
from sim.model.operators import Share

STATISTICS = 4  # bytes per query and head: fp32 log-sum-exp that flash attention keeps


class Block(NamedTuple):
    """Rows of queries against rows of keys, per sequence."""

    queries: int
    keys: int
    pairs: float  # that the mask leaves


def causal(rows: int) -> Block:
    """A sequence against itself."""
    return Block(rows, rows, rows**2 / 2)


def ring(placement: str, ranks: int, rank: int, rows: int) -> list[Block | None]:
    """What a rank with ``rows`` of the sequence computes at each step of a ring of ``ranks``.

    At step i it has the keys of rank - i; None where all of them come later than its queries.

    >>> ring("contiguous", 2, 0, 4), ring("contiguous", 2, 1, 4)[1]
    ([Block(queries=4, keys=4, pairs=8.0), None], Block(queries=4, keys=4, pairs=16.0))
    >>> ring("zigzag", 2, 0, 4)[1], ring("zigzag", 2, 1, 4)[1]
    (Block(queries=2, keys=4, pairs=8.0), Block(queries=4, keys=2, pairs=8.0))
    >>> ring("striped", 2, 0, 4)[1], ring("striped", 2, 1, 4)[1]
    (Block(queries=3, keys=3, pairs=6.0), Block(queries=4, keys=4, pairs=10.0))
    """
    later = [_met(placement, rows, earlier=step <= rank) for step in range(1, ranks)]
    return [causal(rows), *later]


def _met(placement: str, rows: int, earlier: bool) -> Block | None:
    """The block between a rank and another, whose place is ``earlier`` or later."""
    half = rows // 2
    match placement:
        case "contiguous":
            return Block(rows, rows, float(rows**2)) if earlier else None
        case "zigzag":  # the early run of the other's keys, or the late run of one's own queries
            queries, keys = (rows, half) if earlier else (half, rows)
            return Block(queries, keys, float(queries * keys))
        case "striped":  # a token sees the other's of its own row only if that one is earlier
            seen = rows if earlier else rows - 1
            return Block(seen, seen, rows * (rows + (1 if earlier else -1)) / 2)
    raise InputError(f"no placement {placement!r}; there are contiguous, zigzag, striped")


def gathered(placement: str, ranks: int, rank: int, rows: int) -> list[Block]:
    """What a rank computes against the keys of all, a kernel per run of its queries.

    >>> gathered("zigzag", 2, 1, 4)
    [Block(queries=2, keys=4, pairs=6.0), Block(queries=2, keys=6, pairs=10.0)]
    """
    match placement:
        case "contiguous":
            runs, length = [rank], rows
        case "zigzag":
            runs, length = [rank, 2 * ranks - 1 - rank], rows // 2
        case _:
            raise InputError(f"no placement {placement!r} here; there are contiguous, zigzag")
    return [Block(length, (r + 1) * length, r * length**2 + length**2 / 2) for r in runs]


def forward(share: Share, block: Block) -> Compute:
    """One flash kernel: queries, keys and values read, output and statistics written.

    FLOPs as FlashAttention-2 (arXiv:2307.08691, section 4.1) counts them: 4 d per pair and head.
    """
    q, kv, statistics = sizes(share, block)
    flops = 4.0 * share.batch * share.heads * block.pairs * share.head_dim
    moved = 2 * q + 2 * kv + statistics
    return Compute("attention", flops, moved, _shape(share, block), share.dtype)


def backward(share: Share, block: Block) -> Compute:
    """The kernel that computes the scores again: 2.5 times the FLOPs (as FlashAttention-2 counts).

    Queries, output, its gradient, keys, values and statistics are read, three gradients written.
    """
    q, kv, statistics = sizes(share, block)
    flops = 2.5 * forward(share, block).flops
    moved = 4 * q + 4 * kv + statistics
    return Compute("attention_backward", flops, moved, _shape(share, block), share.dtype)


def sizes(share: Share, block: Block) -> tuple[float, float, float]:
    """Bytes of a block's queries, of its keys (or values), and of the statistics."""
    row = float(share.batch * share.head_dim * share.element)
    statistics = float(STATISTICS * share.batch * block.queries * share.heads)
    return row * block.queries * share.heads, row * block.keys * share.kv_heads, statistics


def _shape(share: Share, block: Block) -> tuple[int, ...]:
    return (share.batch, share.heads, block.queries, block.keys, share.head_dim)
