"""The zero-bubble orders made by hand: ZB-H1 and ZB-H2 are one pattern with different constants."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import Plan, Step


def hand(ranks: int, microbatches: int, k: int) -> Plan:
    """Make a plan with one stage per rank and a lead of forwards that is ``k`` times 1F1B's.

    Each W is put off by k · rank steps.

    >>> " ".join(map(str, hand(2, 3, 1)[0]))
    '0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2'
    """
    return [list(_order(rank, ranks, microbatches, k)) for rank in range(ranks)]


def lead(rank: int, ranks: int, k: int) -> int:
    """Return how many forwards a rank runs before the one that its first backward follows."""
    return ranks - rank - 1 if k == 1 else 2 * (ranks - rank) - 2


def peak(rank: int, ranks: int, microbatches: int, k: int) -> float:
    """Return the most activations that a rank holds, in those of a stage.

    I frees one half of an activation and W the other. Right before the forward that follows m
    backwards, lead + m forwards, m I and all but the last k · rank W are done; so each forward adds
    half an activation until m = k · rank.
    """
    ahead = lead(rank, ranks, k)
    put_off = min(k * rank, max(microbatches - 1 - ahead, 0))
    return min(float(microbatches), ahead + 1 + put_off / 2)


def _order(rank: int, ranks: int, microbatches: int, k: int) -> Iterator[Step]:
    forwards = iter(range(microbatches))
    for _, m in zip(range(lead(rank, ranks, k)), forwards, strict=False):
        yield Step(rank, "F", m)
    weights = 0
    for m in range(microbatches):
        for f in forwards:
            yield Step(rank, "F", f)
            break
        yield Step(rank, "I", m)
        if m + 1 - weights > k * rank:
            yield Step(rank, "W", weights)
            weights += 1
    for m in range(weights, microbatches):
        yield Step(rank, "W", m)
