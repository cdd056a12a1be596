"""Which blocks of queries meet which blocks of keys under a causal mask, and what each costs.

Ranks that share a sequence hold parts of it by one of three placements: contiguous (one run of
tokens each), zigzag (2 N runs, rank i has runs i and 2 N - 1 - i) or striped (every N-th token,
Striped Attention, arXiv:2311.09431). A block counts the pairs of a query and a key that the mask
leaves; pairs on the diagonal count as halves, so that a whole sequence of s has s² / 2.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from schedules.input_error import InputError
from sim.graph import Compute
from sim.model.operators import Share

STATISTICS = 4  # bytes per query and head of the fp32 log-sum-exp that flash attention keeps


class Mask(Protocol):
    """Which keys a query meets, its own and earlier ones, in a sequence from its beginning."""

    def pairs(self, rows: int) -> float:
        """Return the pairs that the first ``rows`` queries have with keys."""

    def first_key(self, query: int) -> int:
        """Return the earliest key that a query meets."""


class Causal:
    """Every query meets all keys up to its own."""

    def pairs(self, rows: int) -> float:
        """Return half of the square."""
        return rows**2 / 2

    def first_key(self, query: int) -> int:
        """Return the first key of the sequence."""
        return 0


CAUSAL = Causal()


class AttentionBlock(NamedTuple):
    """A block of query rows against key rows, per sequence."""

    queries: int
    keys: int
    pairs: float  # pairs of a query and a key that the mask leaves


def causal(rows: int, mask: Mask = CAUSAL) -> AttentionBlock:
    """Return the block of a whole sequence of ``rows`` tokens against itself."""
    return AttentionBlock(rows, rows, mask.pairs(rows))


def ring(placement: str, ranks: int, rank: int, rows: int) -> list[AttentionBlock | None]:
    """Return the block that a rank with ``rows`` of the sequence computes at each step of a ring.

    At step i of ``ranks`` it has the keys of rank - i; None where all of them come later than its
    queries. Raises InputError for an unknown placement.

    >>> ring("contiguous", 2, 0, 4)
    [AttentionBlock(queries=4, keys=4, pairs=8.0), None]
    >>> ring("contiguous", 2, 1, 4)[1]
    AttentionBlock(queries=4, keys=4, pairs=16.0)
    >>> ring("zigzag", 2, 0, 4)[1], ring("zigzag", 2, 1, 4)[1]
    (AttentionBlock(queries=2, keys=4, pairs=8.0), AttentionBlock(queries=4, keys=2, pairs=8.0))
    >>> ring("striped", 2, 0, 4)[1], ring("striped", 2, 1, 4)[1]
    (AttentionBlock(queries=3, keys=3, pairs=6.0), AttentionBlock(queries=4, keys=4, pairs=10.0))
    """
    later = [_met(placement, rows, earlier=step <= rank) for step in range(1, ranks)]
    return [causal(rows), *later]


def _met(placement: str, rows: int, earlier: bool) -> AttentionBlock | None:
    """Return the block between a rank and another whose place is ``earlier`` or later."""
    half = rows // 2
    match placement:
        case "contiguous":
            return AttentionBlock(rows, rows, float(rows**2)) if earlier else None
        case "zigzag":  # the early run of the other's keys, or the late run of one's own queries
            queries, keys = (rows, half) if earlier else (half, rows)
            return AttentionBlock(queries, keys, float(queries * keys))
        case "striped":  # a token sees the other rank's token of the same row only if it is earlier
            seen = rows if earlier else rows - 1
            return AttentionBlock(seen, seen, rows * (rows + (1 if earlier else -1)) / 2)
    raise InputError(f"no placement {placement!r}; there are contiguous, zigzag, striped")


def gathered(
    placement: str, ranks: int, rank: int, rows: int, mask: Mask = CAUSAL
) -> list[AttentionBlock]:
    """Return what a rank computes against all keys: one block per run of its queries.

    A block has the keys from the earliest that one of its queries meets.

    Raises InputError for a placement other than contiguous and zigzag.

    >>> gathered("zigzag", 2, 1, 4)
    [AttentionBlock(queries=2, keys=4, pairs=6.0), AttentionBlock(queries=2, keys=6, pairs=10.0)]
    """
    match placement:
        case "contiguous":
            runs, length = [rank], rows
        case "zigzag":
            runs, length = [rank, 2 * ranks - 1 - rank], rows // 2
        case _:
            raise InputError(f"no placement {placement!r} here; there are contiguous, zigzag")
    return [
        AttentionBlock(length, end - mask.first_key(begin), mask.pairs(end) - mask.pairs(begin))
        for begin, end in ((r * length, (r + 1) * length) for r in runs)
    ]


def forward(share: Share, block: AttentionBlock) -> Compute:
    """Return one flash kernel that reads queries, keys and values and writes output and statistics.

    FLOPs are counted as in FlashAttention-2 (arXiv:2307.08691, section 4.1): 4 d per pair and head.
    """
    q, kv, statistics = sizes(share, block)
    flops = 4.0 * share.batch * share.heads * block.pairs * share.head_dim
    moved = 2 * q + 2 * kv + statistics
    return Compute("attention", flops, moved, _shape(share, block), share.dtype, share.attention)


def backward(share: Share, block: AttentionBlock) -> Compute:
    """Return the kernel that computes the scores again, with 2.5 times the FLOPs of the forward.

    FlashAttention-2 (arXiv:2307.08691, section 4.1) counts it so. It reads queries, output, the
    output's gradient, keys, values and statistics, and writes three gradients.
    """
    q, kv, statistics = sizes(share, block)
    flops = 2.5 * forward(share, block).flops
    moved = 4 * q + 4 * kv + statistics
    return Compute(
        "attention_backward", flops, moved, _shape(share, block), share.dtype, share.attention
    )


def sizes(share: Share, block: AttentionBlock) -> tuple[float, float, float]:
    """Return the bytes of a block's queries, of its keys (or values), and of the statistics."""
    row = float(share.batch * share.head_dim * share.element)
    statistics = float(STATISTICS * share.batch * block.queries * share.heads)
    return row * block.queries * share.heads, row * block.keys * share.kv_heads, statistics


def _shape(share: Share, block: AttentionBlock) -> tuple[int, ...]:
    return (share.batch, share.heads, block.queries, block.keys, share.head_dim)
