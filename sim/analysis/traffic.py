"""The bytes that each rank sends, by dimension, with algorithms that send no byte in vain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.graph import Communication, Graph
from sim.late import pd
from sim.timeline import Timeline

SENT: dict[str, Callable[[float, int], float]] = {
    "all_reduce": lambda size, n: 2 * (n - 1) * size / n,
    "all_gather": lambda size, n: (n - 1) * size / n,
    "reduce_scatter": lambda size, n: (n - 1) * size / n,
    "all_to_all": lambda size, n: (n - 1) * size / n,
    "broadcast": lambda size, n: (n - 1) * size / n,  # mean over ranks; the last one sends nothing
    "ring_exchange": lambda size, n: size,
    "p2p": lambda size, n: size,
}
"""The bytes that one of n ranks sends for a whole buffer of ``size`` bytes."""


def traffic(timeline: Timeline) -> pd.DataFrame:
    """Count the bytes that each rank sends in the step, by dimension.

    A row per rank and dimension: rank, dimension, bytes. :func:`bytes_sent` says what counts.
    """
    sent = bytes_sent(timeline.graph)
    rows = [(rank, name, size) for name, of in sent.items() for rank, size in of.items()]
    return pd.DataFrame(sorted(rows), columns=["rank", "dimension", "bytes"])


def bytes_sent(graph: Graph) -> dict[str, dict[int, float]]:
    """Return the bytes that each simulated rank sends in the step: {dimension: {rank: bytes}}.

    Recorded communications (``Fixed`` work) have no known size and are left out. Raises ValueError
    for a collective that :data:`SENT` does not know.
    """
    each = np.array([_sent(w) for w in graph.works])
    work, rank = _members(graph, each != 0.0)
    source = np.array([_source(w) for w in graph.works])
    sends = each[work] * ((source[work] < 0) | (source[work] == rank))
    ranks = graph.ranks()
    row = np.searchsorted(ranks, rank)
    of_work = [w.dimension if isinstance(w, Communication) else "" for w in graph.works]
    totals = {}
    for name in sorted({*of_work} - {""}):
        mine = np.array([of == name for of in of_work])[work]
        totals[name] = np.bincount(row[mine], sends[mine], len(ranks))
    return {n: dict(zip(ranks.tolist(), t.tolist(), strict=True)) for n, t in totals.items()}


def _members(graph: Graph, sends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the work and rank of every member of every part.

    An op without parts is one member, if its work is one of those that ``sends`` says.
    """
    counts = np.diff(graph.part_start)
    alone = np.flatnonzero((counts == 0) & sends[graph.work])
    work = np.append(graph.part_work[graph.part], graph.work[alone])
    return work, np.append(np.repeat(graph.rank, counts), graph.rank[alone])


def _sent(work: object) -> float:
    if not isinstance(work, Communication):
        return 0.0
    if work.collective not in SENT:
        raise ValueError(f"no collective {work.collective!r}; there are {', '.join(SENT)}")
    return SENT[work.collective](work.bytes, len(work.ranks))


def _source(work: object) -> int:
    """Return the one rank that sends, or -1 where all send."""
    return work.ranks[0] if isinstance(work, Communication) and work.collective == "p2p" else -1
