"""ZB-H2: no bubble, for up to twice the activations (Qi et al. 2023, arXiv:2401.10241).

About twice as many forwards as in ZB-H1 run before the first backward and fill the wait for it. It
is sure not to be slower than ZB-H1 only with at least 2 · ranks microbatches.
"""

from schedules import Plan
from schedules.patterns.zb_h import hand, peak

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""


def zb_h2(ranks: int, microbatches: int) -> Plan:
    """Make a plan with one stage per rank, by hand: it depends on no times.

    >>> " ".join(map(str, zb_h2(ranks=2, microbatches=3)[0]))
    '0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2'
    """
    return hand(ranks, microbatches, 2)


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of the makespan without hops.

    The lead-in of (ranks - 1) · F is idle on the last rank, even where no rank idles between its
    first step and its last. Returns None with fewer than 2 · ranks - 1 microbatches.
    """
    if microbatches < 2 * ranks - 1:
        return None
    return (ranks - 1) * max(F + I - 2 * W, F, I - F)


def peak_activations(ranks: int, microbatches: int, chunks: int = 1) -> list[float]:
    """Return the most stage activations that each rank holds.

    I frees one half of an activation and W the other.

    >>> peak_activations(4, 8)
    [7.0, 6.0, 5.0, 4.0]
    """
    return [peak(rank, ranks, microbatches, 2) for rank in range(ranks)]
