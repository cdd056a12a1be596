"""DualPipeV: DualPipe cut in half, each rank with two stages of one pipeline in a V.

See https://github.com/deepseek-ai/DualPipe, ``dualpipev.py``, and torch's ``ScheduleDualPipeV``.
Rank r holds stages r and 2 p - 1 - r: the way down the ranks and the way back are the two
directions.
"""

from schedules import Plan
from schedules import dualpipe as both_ways
from schedules.input_error import InputError
from schedules.patterns.two_directions import order

P2P = "pair"
"""DeepSeek batches messages (dualpipe.py, ``_commit_and_wait_comm``) but posts some before the step
that needs them; ``batched``, which posts each beside its step, stops. So torch's streams."""

STAGES_PER_RANK = 2


def dualpipe_v(ranks: int, microbatches: int) -> Plan:
    """Make DeepSeek's own order.

    >>> " ".join(map(str, dualpipe_v(1, 2)[0]))
    '0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0I1 0W1'
    """
    check(ranks, microbatches)
    return [
        list(order(ranks, rank, microbatches, [(rank, 0), (2 * ranks - 1 - rank, 0)]))
        for rank in range(ranks)
    ]


def check(ranks: int, microbatches: int) -> None:
    """Raise InputError for too few microbatches to fill both ways."""
    if microbatches < 2 * ranks:
        raise InputError(
            f"dualpipe_v needs at least two microbatches per rank; "
            f"{microbatches} on {ranks} ranks are too few; {2 * ranks} would do"
        )


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
    pair: str = "serial",
    FB: float | None = None,
) -> float:
    """Return the idle seconds of the rank that idles most: DualPipe's on twice the ranks."""
    return both_ways.bubble(2 * ranks, microbatches, chunks, F, I, W, pair, FB)


def peak_activations(ranks: int, microbatches: int, chunks: int) -> list[float]:
    """Return the most activations that each rank holds: one more than there are stages."""
    return [2 * ranks + 1.0] * ranks
