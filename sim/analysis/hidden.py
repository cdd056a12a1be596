"""How much of every communication is hidden: how long it waits, moves beside kernels, moves alone.

Each op counts by itself: where the data of two moves at once and no kernel runs, both are exposed.
For shares in which every instant counts once, see :mod:`sim.analysis.breakdown`.
"""

from __future__ import annotations

import numpy as np

from sim.analysis.activity import COMPUTE, HOST, activities, by_rank
from sim.analysis.intervals import Intervals, union, within
from sim.analysis.relations import rendezvous
from sim.late import pd
from sim.timeline import Timeline

SECONDS = ["waiting_s", "moving_s", "hidden_s", "exposed_s"]


def hidden(timeline: Timeline) -> pd.DataFrame:
    """Say how much of its communication each rank hides behind kernels, by dimension.

    A row per rank and dimension: ``waiting_s`` for peers, ``moving_s`` = ``hidden_s`` +
    ``exposed_s``, and ``hidden_share``, the hidden share of ``moving_s``.
    """
    return by_dimension(transfers(timeline))


def transfers(timeline: Timeline) -> pd.DataFrame:
    """Return a table with a row for each communication or copy of each rank, by op.

    Columns: op, name, rank, dimension, layer, microbatch and, in seconds, ``waiting_s`` (for peers,
    before data moves) and ``moving_s`` = ``hidden_s`` (a kernel of the rank runs) + ``exposed_s``.
    """
    graph, kinds = timeline.graph, activities(timeline.graph)
    moves = np.minimum(rendezvous(timeline)[1], timeline.end)  # who had left moved nothing
    behind = np.zeros(len(graph))
    for _, ops in by_rank(graph):
        kernels = ops[kinds.code[ops] == kinds.names.index(COMPUTE)]
        mine = ops[kinds.code[ops] > kinds.names.index(HOST)]
        computing = union(timeline.start[kernels], timeline.end[kernels])
        behind[mine] = within(Intervals(moves[mine], timeline.end[mine]), computing)
    op = np.flatnonzero(kinds.code > kinds.names.index(HOST))
    moving = timeline.end[op] - moves[op]
    hides = np.clip(behind[op], 0.0, moving)  # sums of intervals are rounded
    return pd.DataFrame(
        {
            "op": op,
            "name": np.array(graph.names, object)[graph.name[op]],
            "rank": graph.rank[op],
            "dimension": np.array(kinds.names, object)[kinds.code[op]],
            "layer": graph.layer[op],
            "microbatch": graph.microbatch[op],
            "waiting_s": moves[op] - timeline.start[op],
            "moving_s": moving,
            "hidden_s": hides,
            "exposed_s": np.maximum(moving - behind[op], 0.0),
        }
    )


def by_dimension(of: pd.DataFrame) -> pd.DataFrame:
    """Add up rows of :func:`transfers` by rank and dimension, and give the share that is hidden."""
    sums = of.groupby(["rank", "dimension"], sort=True)[SECONDS].sum().reset_index()
    moving = sums["moving_s"].where(sums["moving_s"] > 0)
    return sums.assign(hidden_share=(sums["hidden_s"] / moving).fillna(1.0))
