"""ZB-H2: no bubble, for up to twice the activations (Qi et al. 2023, arXiv:2401.10241).

About twice as many forwards as in ZB-H1 before the first backward fill the wait for it. Only with
at least 2 · ranks microbatches is it never slower than ZB-H1.
"""

from schedules import Plan
from schedules.patterns.zb_h import hand, peak

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may


def zb_h2(ranks: int, microbatches: int) -> Plan:
    """One stage per rank, by hand: no times enter.

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
    """Idle seconds of a rank without hops; None with fewer than 2 · ranks - 1 microbatches.

    Of the makespan: the lead-in of (ranks - 1) · F is idle on the last rank, even where each rank's
    own span has no bubble.
    """
    if microbatches < 2 * ranks - 1:
        return None
    return (ranks - 1) * max(F + I - 2 * W, F, I - F)


def peak_activations(ranks: int, microbatches: int, chunks: int = 1) -> list[float]:
    """Held at most on each rank, in activations of a stage, half freed at I and half at W.

    >>> peak_activations(4, 8)
    [7.0, 6.0, 5.0, 4.0]
    """
    return [peak(rank, ranks, microbatches, 2) for rank in range(ranks)]
