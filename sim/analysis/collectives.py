"""Collectives and messages by their members: how long members wait, how long data moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.analysis.relations import rendezvous
from sim.analysis.weights import op_weights, part_sizes, part_weights
from sim.graph import Graph, owners
from sim.late import pd
from sim.timeline import Timeline, dimension


def collectives(timeline: Timeline) -> pd.DataFrame:
    """Add up collectives and messages by dimension and number of members, most seconds first.

    Columns: dimension, members (ranks in each), groups (different sets of ranks) and number (of
    collectives and messages), all as if every rank were simulated. ``waiting_s`` (for peers) and
    ``transfer_s`` (while data moves) are means per rank that takes part; ``longest_wait_s`` is the
    longest wait of one member.
    """
    graph = timeline.graph
    op = owners(graph.part_start)
    if not len(op):
        return _frame([])
    moves = rendezvous(timeline)[1]
    members = np.bincount(graph.part, minlength=len(graph.part_work))
    group = _groups(graph, op, members)
    weight = op_weights(graph)[op]
    of_work = np.array([dimension(work) for work in graph.works], object)
    names = of_work[graph.part_work[graph.part]]
    table = pd.DataFrame(
        {
            "dimension": names,
            "members": part_sizes(graph)[graph.part],
            "group": group[graph.part],
            "part": graph.part,
            "copies": part_weights(graph)[graph.part],
            "rank": graph.rank[op],
            "ranks": weight,
            "waiting": moves[op] - timeline.start[op],
            "waited": weight * (moves[op] - timeline.start[op]),
            "moved": weight * (timeline.end[op] - moves[op]),
        }
    )
    rows: list[tuple[Any, ...]] = []
    for (name, _), of in table.groupby(["dimension", "members"], sort=True):
        ranks = of.drop_duplicates("rank")["ranks"].sum()
        groups, number = (
            round(of.drop_duplicates(key)["copies"].sum()) for key in ("group", "part")
        )
        rows.append(
            (
                str(name), int(of["members"].iloc[0]), groups, number,
                float(of["waited"].sum() / ranks), float(of["moved"].sum() / ranks),
                float(of["waiting"].max()),
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (-row[4] - row[5], row[0], row[1]))
    return _frame(rows)


COLUMNS = ["dimension", "members", "groups", "number", "waiting_s", "transfer_s", "longest_wait_s"]


def _frame(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS)


def _groups(graph: Graph, op: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return a number per part, the same for parts of the same set of ranks."""
    order = np.lexsort((graph.rank[op], graph.part))
    begins = np.append(0, np.cumsum(members))
    ranks = graph.rank[op[order]].tolist()
    known: dict[tuple[int, ...], int] = {}
    sets = [
        tuple(ranks[a:b]) for a, b in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
    ]
    return np.array([known.setdefault(of, len(known)) for of in sets], np.int64)
