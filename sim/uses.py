"""Found before a run: what can be shared at all. What cannot never enters a solver."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from sim.between import Between
from sim.graph import Fixed, Graph, Ints, offsets
from sim.hardware import Machine
from sim.segments import Flags, Longs, Segments, beside_compute


@dataclass(frozen=True, eq=False)
class Uses:
    """Facts of a graph on a machine that decide how each segment is started."""

    beside_compute: Flags  # of each segment: a communication that may slow kernels beside it
    sms: Ints  # of each segment: SMs its communication holds
    on_links: Flags  # of each work: uses links that another stream may use at the same time
    uses_hbm: Flags  # of each part: takes memory bandwidth that kernels beside it feel
    members: Longs  # of each part: how many
    member_start: Ints  # of each part: into
    member: Longs  # rows of Segments.part_of, sorted by part, then by op
    row_segment: Longs  # of each row of Segments.part_of: its segment
    part_order: Longs  # of each part: its first op
    how: NDArray[np.int8]  # of each segment: one of the four below


PLAIN, CHAIN, COMMUNICATION, MEETING = range(4)
"""Nothing beside it; kernels that may be slowed; communication that shares or is shared; one that
only waits for its peers."""


def uses(graph: Graph, segs: Segments, machine: Machine) -> Uses:
    """Decide what may meet what."""
    ops = segs.order[segs.first[:-1]]
    row_segment = np.repeat(np.arange(len(segs)), np.diff(segs.part_start))
    row_op = ops[row_segment]
    member = np.lexsort((row_op, segs.part_of))
    members = np.bincount(segs.part_of, minlength=len(graph.part_work))
    member_start = offsets(members)
    part_order = np.zeros(len(members), np.int64)
    part_order[members > 0] = row_op[member[member_start[:-1][members > 0]]]
    heavy = (machine.sms > 0) | (machine.hbm > 0)
    sms = np.zeros(len(segs), np.int64)
    np.maximum.at(sms, row_segment, machine.sms[graph.part_work[segs.part_of]])
    weighs = np.zeros(len(segs), np.bool_)
    np.logical_or.at(weighs, row_segment, heavy[graph.part_work[segs.part_of]])
    felt = (machine.arithmetic > 0) | (machine.memory > 0)  # kernels that sharing can slow
    is_compute = felt | np.array([isinstance(w, Fixed) for w in graph.works], np.bool_)
    beside = beside_compute(graph, segs, is_compute) & weighs
    on_links = _on_links(graph, segs, machine, row_op)
    row_hbm = beside[row_segment] & (machine.hbm[graph.part_work[segs.part_of]] > 0)
    uses_hbm = np.zeros(len(members), np.bool_)
    np.logical_or.at(uses_hbm, segs.part_of, row_hbm)
    quiet = ~beside & ~_any_row(segs, on_links, graph, row_segment)
    lonely = _lonely(graph, segs, members) & quiet
    meeting = _meets_only(segs, members, row_segment, quiet)
    chain = _mixed(graph, segs, beside, felt, ops)
    how = np.where(segs.has_parts & ~lonely, COMMUNICATION, np.where(chain, CHAIN, PLAIN))
    how[meeting & ~lonely] = MEETING
    return Uses(
        beside_compute=beside,
        sms=sms.astype(np.int32),
        on_links=on_links,
        uses_hbm=uses_hbm,
        members=members,
        member_start=member_start,
        member=member,
        row_segment=row_segment,
        part_order=part_order,
        how=how.astype(np.int8),
    )


def _any_row(segs: Segments, flag: Flags, graph: Graph, row_segment: Longs) -> Flags:
    out = np.zeros(len(segs), np.bool_)
    np.logical_or.at(out, row_segment, flag[graph.part_work[segs.part_of]])
    return out


def _lonely(graph: Graph, segs: Segments, members: Longs) -> Flags:
    """One part, in which no other simulated rank has a share, with the op's own work, no tail."""
    one = np.diff(segs.part_start) == 1
    out = np.zeros(len(segs), np.bool_)
    row = segs.part_start[:-1][one]
    part = segs.part_of[row]
    own = graph.part_work[part] == graph.work[segs.order[segs.first[:-1][one]]]
    out[one] = (members[part] == 1) & own & (segs.tail[row] == 0)
    return out


def _meets_only(segs: Segments, members: Longs, row_segment: Longs, quiet: Flags) -> Flags:
    """One part, whose members all have only that one, share nothing and have no tail."""
    simple = quiet & (np.diff(segs.part_start) == 1)
    simple[row_segment[segs.tail != 0]] = False
    whole = np.ones(len(members), np.bool_)
    np.logical_and.at(whole, segs.part_of, simple[row_segment])
    out = simple.copy()
    out[row_segment] &= whole[segs.part_of]
    return out


def _mixed(graph: Graph, segs: Segments, beside: Flags, felt: Flags, ops: Longs) -> Flags:
    """Kernel segments on GPUs where communication may run beside kernels, or kernels beside others."""
    kernels = ~segs.has_parts
    busy = np.zeros(len(segs.ranks), np.bool_)
    busy[segs.rank[beside]] = True
    streams = len(graph.streams)
    used = np.zeros((len(busy), streams), np.bool_)
    used[segs.rank[kernels], graph.stream[ops][kernels]] = True
    busy |= used.sum(axis=1) > 1
    feels = np.logical_or.reduceat(felt[graph.work[segs.order]], segs.first[:-1])
    return kernels & busy[segs.rank] & feels


def _on_links(graph: Graph, segs: Segments, machine: Machine, row_op: Longs) -> Flags:
    """Works that may meet another on a link.

    Two works never meet if every part of either has a member on one common stream, since a stream
    runs one op at a time; nor if they have members on a common rank between different kernels of
    it, see :mod:`sim.between`.
    """
    users: dict[int, list[int]] = defaultdict(list)
    for w in np.flatnonzero(np.diff(machine.link_start)).tolist():
        for link in machine.link[machine.link_start[w] : machine.link_start[w + 1]].tolist():
            users[link].append(w)
    always = _always_on(graph, segs, row_op)
    apart = Between(graph, segs, row_op)
    out = np.zeros(len(graph.works), np.bool_)
    met: dict[tuple[int, int], bool] = {}
    for works in {tuple(works) for works in users.values()}:
        for u, v in combinations_with_replacement(works, 2):
            if (u, v) not in met:
                met[u, v] = not (always[u] & always[v]) and not apart(u, v, always[u], always[v])
            if met[u, v]:
                out[[u, v]] = True
    return out


def _always_on(graph: Graph, segs: Segments, row_op: Longs) -> dict[int, set[int]]:
    """Per work, the streams (rank times streams plus stream) on which each part has a member."""
    n_streams, n_parts = len(graph.streams), max(len(graph.part_work), 1)
    stream = graph.rank[row_op].astype(np.int64) * n_streams + graph.stream[row_op]
    work = graph.part_work[segs.part_of].astype(np.int64)
    distinct = np.unique(stream * n_parts + segs.part_of)  # an op may be in a part only once
    pair = graph.part_work[distinct % n_parts] + len(graph.works) * (distinct // n_parts)
    pairs, count = np.unique(pair, return_counts=True)
    parts = np.bincount(graph.part_work[np.unique(segs.part_of)], minlength=len(graph.works))
    out: dict[int, set[int]] = {int(w): set() for w in np.unique(work)}
    for key, n in zip(pairs.tolist(), count.tolist(), strict=True):
        key, w = divmod(key, len(graph.works))
        if n == parts[w]:
            out[w].add(key)
    return out
