"""Looped breadth-first: all forwards chunk by chunk, then all backwards in reverse.

Lamy-Poirier 2022, arXiv:2211.05953; the order is that of torch's ``ScheduleLoopedBFS``, which runs
the backwards from the last microbatch to the first. Rank r holds stages r, r + ranks, ...
"""

from collections.abc import Iterator

from schedules import Plan, Step

P2P = "pair"
"""As torch's runtime sends; see :mod:`schedules.from_csv`."""


def looped_bfs(ranks: int, microbatches: int, chunks: int = 2) -> Plan:
    """Make a plan with ``chunks`` stages per rank, each run for all microbatches before the next.

    >>> " ".join(map(str, looped_bfs(2, 2)[0]))
    '0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0'
    """
    return [list(_order(range(rank, ranks * chunks, ranks), microbatches)) for rank in range(ranks)]


def bubble(ranks: int, microbatches: int, chunks: int, F: float, I: float, W: float) -> float:
    """Return the idle seconds of every rank.

    With fewer microbatches than ranks, each chunk waits for all of them.
    """
    rounds = (chunks - 1) * max(ranks - microbatches, 0) + ranks - 1
    return rounds * (F + I + W)


def peak_activations(ranks: int, microbatches: int, chunks: int) -> list[float]:
    """Return the most activations that each rank holds: all of its stages and microbatches."""
    return [float(microbatches * chunks)] * ranks


def _order(stages: range, microbatches: int) -> Iterator[Step]:
    for stage in stages:
        for m in range(microbatches):
            yield Step(stage, "F", m)
    for stage in reversed(stages):
        for m in reversed(range(microbatches)):
            yield Step(stage, "B", m)
