"""What can be shared at all, found before a run; nothing else enters a solver of shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.engine.between import Between, Computing, Flags, beside_compute, computing
from sim.engine.links import meeting
from sim.graph import Fixed, Graph, Ints, Longs, Work, offsets, owners, run_starts
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
    on_links = meeting(graph, machine, row_op, between)
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
