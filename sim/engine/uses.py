"""What can be shared at all, found before a run; nothing else enters a solver of shares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from sim.engine.between import Between, Computing, Flags, Longs, beside_compute, computing
from sim.graph import Fixed, Graph, Ints, Work, offsets, owners, run_starts
from sim.machine.hardware import Machine

PLAIN, CHAIN, COMMUNICATION, RENDEZVOUS = range(4)
"""How an op starts: it is an op that nothing can slow, a kernel that may be slowed, a communication
that shares links or slows kernels, or a communication that only waits for its peers."""


@dataclass(frozen=True, eq=False)
class Uses:
    """The facts of a graph on a machine that decide how the engine runs it."""

    how: NDArray[np.int8]  # of each op: one of the four above
    beside: Flags  # of each op: a communication that may slow kernels beside it
    sms: Ints  # of each op: SMs its communication holds
    in_line: Flags  # of each op: a communication for which its rank's kernels stand still
    between: Between
    on_links: Flags  # of each work: uses links that another part may use at the same time
    uses_hbm: Flags  # of each part: takes memory bandwidth that kernels beside it feel
    members: Longs  # of each part: how many
    member_start: Ints  # of each part: into
    member: Longs  # memberships (rows of graph.part), sorted by part, then by op
    row_op: Longs  # of each membership: its op
    op_turn: Longs  # of each op and part: whose event comes first of those of one instant; that of
    part_turn: Longs  # a part when its data moves, and one more when it ends
    several: Flags  # of each op: its rank runs kernels on several streams


def uses(graph: Graph, machine: Machine) -> Uses:
    """Decide which ops may meet on links and GPUs, and so how each op starts."""
    n, n_parts = len(graph), len(graph.part_work)
    row_op, counts = owners(graph.part_start), np.diff(graph.part_start)
    row_work = graph.part_work[graph.part]
    member = np.argsort(graph.part, kind="stable")
    members = np.bincount(graph.part, minlength=n_parts)
    member_start = offsets(members)
    first = np.zeros(n_parts, np.int64)
    first[members > 0] = row_op[member[member_start[:-1][members > 0]]]
    op_turn, part_turn = _turns(n, first)
    sms = np.zeros(n, np.int32)
    np.maximum.at(sms, row_op, machine.sms[row_work])
    felt = (machine.arithmetic > 0) | (machine.memory > 0)  # kernels that sharing can slow
    is_kernel = (felt | np.array([_fixed_kernel(w) for w in graph.works], np.bool_))[graph.work]
    is_kernel &= counts == 0
    between, ranks = Between(graph, row_op), computing(graph, is_kernel)
    heavy = (machine.sms > 0) | (machine.hbm > 0)
    weighs, single = _any(n, row_op, heavy[row_work]), _lone(graph, members, row_op)
    moving = beside_compute(graph, np.flatnonzero(weighs | single), is_kernel, ranks)
    beside = moving & weighs
    on_links = _on_links(graph, machine, row_op, between)
    uses_hbm = _any(n_parts, graph.part, beside[row_op] & (machine.hbm[row_work] > 0))
    quiet = (counts == 1) & ~beside & ~_any(n, row_op, on_links[row_work])
    quiet[row_op[graph.part_tail != 0]] = False
    lone = quiet & single
    rendezvous = quiet & ~lone & _whole(graph, quiet, row_op)
    how = np.where(counts > 0, COMMUNICATION, PLAIN).astype(np.int8)
    how[_mixed(graph, beside, felt, is_kernel, ranks)] = CHAIN
    how[lone], how[rendezvous] = PLAIN, RENDEZVOUS
    return Uses(
        how=how,
        beside=beside,
        sms=sms,
        in_line=lone & ~moving & ranks.single[graph.rank],
        between=between,
        on_links=on_links,
        uses_hbm=uses_hbm,
        members=members,
        member_start=member_start,
        member=member,
        row_op=row_op,
        op_turn=op_turn,
        part_turn=part_turn,
        several=ranks.several[graph.rank],
    )


def _turns(n: int, first: Longs) -> tuple[Longs, Longs]:
    """Return numbers per op and per part that order all events of an instant.

    They go by op, and an op's parts come behind it; ``first`` has each part's first op. A part that
    moves and ends at one instant moves first.
    """
    order = np.argsort(first, kind="stable")
    ahead = run_starts(first[order])  # parts of earlier ops
    among = np.empty(len(first), np.int64)
    among[order] = np.arange(len(first)) - np.repeat(ahead, np.diff(ahead, append=len(first)))
    step = 2 * int(among.max(initial=-1)) + 3
    return np.arange(n) * step, first * step + 1 + 2 * among


def _fixed_kernel(work: Work) -> bool:
    return isinstance(work, Fixed) and work.kind not in ("communication", "copy", "host")


def _any(size: int, row: Longs | Ints, flag: Flags) -> Flags:
    out = np.zeros(size, np.bool_)
    out[row[flag]] = True
    return out


def _lone(graph: Graph, members: Longs, row_op: Longs) -> Flags:
    """Return a flag per op: it is its part's only simulated member, and the work is its own."""
    own = graph.part_work[graph.part] == graph.work[row_op]
    return _any(len(graph), row_op, (members[graph.part] == 1) & own)


def _whole(graph: Graph, quiet: Flags, row_op: Longs) -> Flags:
    """Return a flag per op: it has a part whose members are all quiet."""
    loud = _any(len(graph.part_work), graph.part, ~quiet[row_op])
    return _any(len(graph), row_op, ~loud[graph.part])


def _mixed(graph: Graph, beside: Flags, felt: Flags, is_kernel: Flags, ranks: Computing) -> Flags:
    """Return a flag per op: it is a kernel of a rank on which kernels may be slowed.

    That is a rank on which communication may run beside kernels, or kernels beside kernels, and
    some kernel of it can be slowed at all.
    """
    busy, runs = ranks.several.copy(), run_starts(graph.rank)
    busy[graph.rank[beside]] = True
    feels = np.zeros(len(busy), np.bool_)  # ranks on which some kernel can be slowed
    some = np.logical_or.reduceat(is_kernel & felt[graph.work], runs)
    feels[graph.rank[runs[some]]] = True
    mixed: Flags = is_kernel & (busy & feels)[graph.rank]
    return mixed


def _on_links(graph: Graph, machine: Machine, row_op: Longs, apart: Between) -> Flags:
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
