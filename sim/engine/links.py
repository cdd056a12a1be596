"""Which works may meet another on a link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement

import numpy as np

from sim.engine.between import Between, Flags
from sim.graph import Graph, Ints, Longs, run_starts
from sim.machine.hardware import Machine


def meeting(graph: Graph, machine: Machine, row_op: Longs, apart: Between) -> Flags:
    """Return a flag per work: it may meet another on a link.

    Two parts of one op move at the same time. Two works of different ops never meet if every part
    of both has a member on one common stream, since a stream runs one op at a time. Nor do they if
    they have members on a common rank between different kernels of it (:mod:`sim.engine.between`).
    """
    users: dict[int, list[int]] = defaultdict(list)
    for w in np.flatnonzero(np.diff(machine.link_start)).tolist():
        for link in machine.link[machine.link_start[w] : machine.link_start[w + 1]].tolist():
            users[link].append(w)
    if not users:
        return np.zeros(len(graph.works), np.bool_)
    always = _always_on(graph, row_op)
    out = np.zeros(len(graph.works), np.bool_)
    met = dict.fromkeys(_batched(graph), True)
    for works in {tuple(works) for works in users.values()}:
        for u, v in combinations_with_replacement(works, 2):
            if out[u] and out[v]:
                continue  # both are known to meet somebody
            if (u, v) not in met:
                met[u, v] = not (always[u] & always[v]) and not apart(u, v, always[u], always[v])
            if met[u, v]:
                out[[u, v]] = True
    return out


def _always_on(graph: Graph, row_op: Longs) -> defaultdict[int, set[int]]:
    """Return per work the streams on which each of its parts has a member.

    A stream is its rank times the number of streams, plus its row in ``graph.streams``.
    """
    n_streams, n_parts = len(graph.streams), max(len(graph.part_work), 1)
    stream = graph.rank[row_op].astype(np.int64) * n_streams + graph.stream[row_op]
    distinct = np.sort(stream * n_parts + graph.part)
    distinct = distinct[run_starts(distinct)]
    key, part = np.divmod(distinct, n_parts)
    pairs = np.sort(graph.part_work[part] + len(graph.works) * key)
    begins = run_starts(pairs)
    pairs, count = pairs[begins], np.diff(begins, append=len(pairs))
    joined = np.bincount(graph.part, minlength=n_parts) > 0
    parts = np.bincount(graph.part_work[joined[: len(graph.part_work)]], minlength=len(graph.works))
    out: defaultdict[int, set[int]] = defaultdict(set)
    for key, n in zip(pairs.tolist(), count.tolist(), strict=True):
        stream_key, w = divmod(key, len(graph.works))
        if n == parts[w]:
            out[w].add(stream_key)
    return out


def _batched(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield the pairs of works (u <= v) of which one op has a part each."""
    count = np.diff(graph.part_start)
    for k in np.unique(count[count > 1]).tolist():
        begin = graph.part_start[:-1][count == k]
        works = graph.part_work[graph.part[begin[:, None] + np.arange(k)]]
        for row in _distinct_rows(np.sort(works, axis=1), len(graph.works)).tolist():
            yield from combinations(row, 2)


def _distinct_rows(rows: Ints, base: int) -> Ints:
    """Return the distinct rows of numbers less than ``base``, which ``np.unique`` sorts slowly."""
    key, size = rows[:, 0].astype(np.int64), base
    for column in rows.T[1:]:
        size *= base
        if size >= 2**63:
            found, key = np.unique(key, return_inverse=True)
            size = len(found) * base
        key = key * base + column
    return rows[np.unique(key, return_index=True)[1]]
