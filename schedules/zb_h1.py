"""ZB-H1: 1F1B with each backward split in two (Qi et al. 2023, arXiv:2401.10241, section 2.2).

The weight gradients fill what 1F1B leaves idle after its last backwards, at 1F1B's memory.
"""

from schedules import Plan
from schedules.patterns.zb_h import hand, peak

POLICIES = ("direction", "pair", "batched")  # of p2p, under which no order stops
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""


def zb_h1(ranks: int, microbatches: int) -> Plan:
    """Make a plan with one stage per rank, by hand: it depends on no times.

    >>> " ".join(map(str, zb_h1(ranks=2, microbatches=3)[1]))
    '1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2'
    """
    return hand(ranks, microbatches, 1)


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of a rank without hops; None with fewer microbatches than ranks."""
    return (ranks - 1) * max(F + I - W, F, I) if microbatches >= ranks else None


def peak_activations(ranks: int, microbatches: int, chunks: int = 1) -> list[float]:
    """Return the most stage activations that each rank holds.

    I frees one half of an activation and W the other.

    >>> peak_activations(4, 8)
    [4.0, 3.5, 3.0, 2.5]
    """
    return [peak(rank, ranks, microbatches, 1) for rank in range(ranks)]
