"""PipeDream: asynchronous 1F1B, no flush (Narayanan et al. 2019, SOSP; 2BW: arXiv:2006.09503).

The pipeline never drains between updates, so a microbatch's backward must find the weights that
its forward used: each rank keeps several versions. Without ``batch`` every microbatch is a
minibatch with an update of its own; 2BW updates once per ``batch`` and keeps two versions.
"""

from schedules import Plan
from schedules import one_f_one_b as flushed
from schedules.input_error import InputError

P2P = "direction"
"""A thread and a process group per tensor and direction (msr-fiddle/pipedream,
runtime/communication.py)."""

ASYNCHRONOUS = True


def pipedream(ranks: int, microbatches: int, batch: int | None = None) -> Plan:
    """Make the order of 1F1B, over all ``microbatches`` of a run rather than of a step.

    >>> " ".join(map(str, pipedream(2, 3)[0]))
    '0F0 0F1 0B0 0F2 0B1 0B2'
    """
    check(ranks, microbatches, batch)
    return flushed.one_f_one_b(ranks, microbatches)


def check(ranks: int, microbatches: int, batch: int | None = None) -> None:
    """Raise InputError for batches that do not fit, or that need over two versions of weights."""
    if batch is not None and batch < ranks:
        raise InputError(
            f"a batch of {batch} microbatches on {ranks} ranks needs more than two versions of "
            f"the weights; at least {ranks} would do, or no batch"
        )
    if batch is not None and microbatches % batch:
        below = microbatches // batch * batch
        near = f"{below} or {below + batch}" if below else f"{batch}"
        raise InputError(
            f"{microbatches} microbatches are not whole batches of {batch}; {near} would be"
        )


def staleness(ranks: int, batch: int | None = None) -> list[int]:
    """Return how many updates each rank's weights lack, compared with one microbatch at a time.

    >>> staleness(4), staleness(4, batch=8)
    ([3, 2, 1, 0], [1, 1, 1, 1])
    """
    return [ranks - 1 - rank if batch is None else 1 for rank in range(ranks)]


def versions_kept(ranks: int, batch: int | None = None) -> list[int]:
    """Return how many versions of its weights each rank must keep.

    >>> versions_kept(4), versions_kept(4, batch=8)
    ([4, 3, 2, 1], [2, 2, 2, 2])
    """
    return [late + 1 for late in staleness(ranks, batch)]


def version(ranks: int, rank: int, microbatch: int, batch: int | None = None) -> int:
    """Return which version (the updates made to it) a rank uses for a microbatch.

    Its forward and its backward use the same.

    >>> [version(4, 0, m) for m in range(8)]
    [0, 0, 0, 0, 1, 2, 3, 4]
    """
    return max(0, microbatch // (batch or 1) - staleness(ranks, batch)[rank])


def bubble(ranks: int, microbatches: int, chunks: int, F: float, I: float, W: float) -> float:
    """Return the idle seconds of each rank, which are at the two ends of a run."""
    return (ranks - 1) * (F + I + W)


def peak_activations(ranks: int, microbatches: int, chunks: int) -> list[float]:
    """Return the most activations that each rank holds: one per rank from this one on."""
    return [float(min(microbatches, ranks - rank)) for rank in range(ranks)]
