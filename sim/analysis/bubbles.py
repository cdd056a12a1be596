"""Every interval in which a rank does not compute: its cause, and what ended it.

Intervals and causes are those of :mod:`sim.analysis.idle`. Here each interval also names the op
that the rank waited for at its end, and the rank of that op.
"""

from __future__ import annotations

import numpy as np

from sim.analysis.activity import HOST, Activities, activities, by_rank
from sim.analysis.idle import CAUSES, DRAIN, Idle, idle, starting
from sim.analysis.intervals import first_come
from sim.analysis.relations import binding, needed, rendezvous
from sim.graph import Floats, Longs
from sim.late import pd
from sim.timeline import Timeline


def bubbles(timeline: Timeline, of: Idle | None = None) -> pd.DataFrame:
    """List each interval in which a rank does not compute, with its cause and what it waited for.

    Columns, by rank and start: rank, start, end, seconds, cause, op, name, peer.

    ``op`` is what the rank waited for. For ``exposed_D`` it is the transfer whose data moved, and
    for ``waiting`` the peer's op that came last. For ``dependency`` and ``warm_up`` it is such an
    op of a peer, or the op of another rank that the next kernel waited for. For ``launch`` it is
    the host's op, for ``lag`` the op before. ``peer`` is the rank of that op. Both are -1 where
    nothing ends the interval: at the end of the timeline, and where a kernel waits for nothing.
    """
    found = idle(timeline) if of is None else of
    kinds, needs = activities(timeline.graph), binding(timeline)
    arrival, moves = rendezvous(timeline)
    op = np.full(len(found.rank), -1, np.int64)
    for rank, ops in by_rank(timeline.graph):
        mine = np.flatnonzero(found.rank == rank)
        cause, end = found.cause[mine], found.end[mine]
        transfers = ops[kinds.code[ops] > kinds.names.index(HOST)]
        moving = cause >= len(CAUSES)
        op[mine[moving]] = _moving(timeline, moves, transfers, end[moving])
        rest = mine[~moving]
        op[rest] = _waited(timeline, kinds, needs, arrival, moves, ops, found.end[rest])
    op[(found.cause == DRAIN) & (found.end == timeline.end.max(initial=0.0))] = -1
    return _frame(timeline, found, op)


def by_peer(of: pd.DataFrame, cause: str = "waiting") -> pd.DataFrame:
    """Return the seconds that each rank (row) loses to each peer (column) by a cause."""
    mine = of[of["cause"] == cause]
    return mine.pivot_table("seconds", "rank", "peer", aggfunc="sum", fill_value=0.0)


def normalised(timeline: Timeline, of: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time of each rank in the two ways in which papers count it.

    A row per rank: ``idle_s``; ``idle_share_of_step``, which is idle / step; and
    ``idle_over_ideal``, which is idle / busy, the bubble of GPipe's and Megatron-LM's papers.
    """
    ranks = timeline.graph.ranks()
    idles = np.bincount(np.searchsorted(ranks, of["rank"]), of["seconds"], len(ranks))
    step = timeline.seconds
    busy = step - idles
    return pd.DataFrame(
        {
            "rank": ranks,
            "idle_s": idles,
            "idle_share_of_step": idles / step if step else idles,
            "idle_over_ideal": np.divide(idles, busy, out=np.zeros_like(idles), where=busy > 0),
        }
    )


def _moving(timeline: Timeline, moves: Floats, transfers: Longs, end: Floats) -> Longs:
    """Return the transfer whose data moves just before each instant (the one that causes count)."""
    owner, pieces = first_come(moves[transfers], timeline.end[transfers])
    k = np.minimum(np.searchsorted(pieces.end, end), len(pieces.end) - 1)
    return transfers[owner[k]] if len(end) else np.empty(0, np.int64)


def _waited(
    timeline: Timeline,
    kinds: Activities,
    needs: Longs,
    arrival: Longs,
    moves: Floats,
    ops: Longs,
    end: Floats,
) -> Longs:
    """Return the op that let the rank go on at each instant: a peer's that came, or a need met."""
    code = kinds.code[ops]
    out = needed(timeline, needs, arrival, starting(timeline, ops[code == 0], end))
    transfers = ops[code > kinds.names.index(HOST)]
    met = transfers[moves[transfers] > timeline.start[transfers]]
    met = met[np.argsort(moves[met], kind="stable")]
    if len(met):
        k = np.minimum(np.searchsorted(moves[met], end), len(met) - 1)
        came = moves[met[k]] == end
        out[came] = arrival[met[k[came]]]
    return out


def _frame(timeline: Timeline, found: Idle, op: Longs) -> pd.DataFrame:
    graph = timeline.graph
    some = op >= 0
    name, peer = np.full(len(op), "", object), np.full(len(op), -1, np.int64)
    name[some] = np.array(graph.names, object)[graph.name[op[some]]]
    peer[some] = graph.rank[op[some]]
    causes = pd.Categorical.from_codes(found.cause, list(found.causes))  # type: ignore[arg-type]
    columns = {"rank": found.rank, "start": found.start, "end": found.end}
    seconds = found.end - found.start
    return pd.DataFrame(
        {**columns, "seconds": seconds, "cause": causes, "op": op, "name": name, "peer": peer}
    )
