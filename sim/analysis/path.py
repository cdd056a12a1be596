"""The critical path second by second: which op it runs through, and the cause of each second.

It crosses ranks, streams, groups and transfers. At a collective it follows the member that came
last. So a wait for a straggler never shows as communication: the path shows what the straggler does
meanwhile. Such seconds are marked with the rank that is waited for. They begin when half of the
members of a collective wait, and end when its last member has come.
"""

from __future__ import annotations

import math

import numpy as np

from sim.analysis.activity import COMPUTE, COPY, HOST, activities
from sim.analysis.critical_path import walk
from sim.analysis.slack import part_times
from sim.analysis.weights import lower_median, op_weights
from sim.graph import Communication, Graph, Work, owners
from sim.late import pd
from sim.timeline import Timeline, dimension, kind

LAUNCH, LAG, STRAGGLER = "launch", "lag", "straggler"
PEER_TO_PEER = ("p2p", "ring_exchange")


def path(timeline: Timeline) -> pd.DataFrame:
    """Follow the critical path through ranks and streams, with the cause of each second.

    One row per stretch of time, from the first start to the last end.

    ``op`` is the op that the path runs through (for a collective, the member that came last), or
    for a lag the op that it delays. ``ends`` is the member whose end lets the path go on, ``part``
    the part that decides that end (-1 outside of parts), and ``straggler`` the rank that a
    collective waits for meanwhile (-1 if none). ``cause`` is "compute KIND",
    "communication DIMENSION", "copy", "launch" (the host, and the lag behind it) or "lag". Rows
    touch, so the seconds sum to the step.
    """
    pieces = _pieces(timeline)
    frame = _cut(pieces, _late(timeline, pieces))
    graph, op = timeline.graph, frame["op"].to_numpy(np.int64)
    frame.insert(1, "name", [graph.names[k] for k in graph.name[op]])
    frame.insert(2, "rank", graph.rank[op])
    frame.insert(3, "stream", [graph.streams[k] for k in graph.stream[op]])
    frame["seconds"] = frame["end"] - frame["start"]
    return frame


def by_cause(of: pd.DataFrame, stragglers: bool = True) -> dict[str, float]:
    """Return the seconds of the path by cause, most first; they sum to the step.

    With ``stragglers``, seconds in which a collective waits for its last member count as
    "straggler".
    """
    cause = of["cause"].where((of["straggler"] < 0) | (not stragglers), STRAGGLER)
    sums = {str(name): math.fsum(of["seconds"][cause == name]) for name in cause.unique()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def by_straggler(of: pd.DataFrame) -> dict[int, float]:
    """Return the seconds of the path in which collectives wait for a rank, by rank, most first."""
    late = of[of["straggler"] >= 0]
    rank = late["straggler"].to_numpy(np.int64)
    sums = {r: math.fsum(late["seconds"][rank == r]) for r in np.unique(rank).tolist()}
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def causes(graph: Graph) -> tuple[str, ...]:
    """Return for each row of ``graph.works`` the cause that its seconds count as."""
    return tuple(_cause(work) for work in graph.works)


def _cause(work: Work) -> str:
    if dimension(work):
        return f"communication {dimension(work)}"
    of = kind(work)
    return {HOST: LAUNCH, COPY: COPY}.get(of, f"compute {of}" if of != COMPUTE else COMPUTE)


def _pieces(timeline: Timeline) -> pd.DataFrame:
    """Return a row for each op of the path and each lag before one, first to last."""
    graph, start, end = timeline.graph, timeline.start, timeline.end
    kinds = activities(graph)
    host, of_work = kinds.code == kinds.names.index(HOST), np.array(causes(graph), object)
    op, ends, before = np.array([*walk(timeline)], np.int64).reshape(-1, 3)[::-1].T
    ready = np.where(before >= 0, end[before], start.min(initial=np.inf))
    launched = (before >= 0) & host[before]
    columns = {
        "op": (op, op),
        "ends": (op, ends),
        "part": (np.full(len(op), -1), _decisive(timeline, ends)),
        "start": (ready, start[op]),
        "end": (start[op], end[ends]),
        "cause": (
            np.where(launched, LAUNCH, LAG),
            np.where(host[op], LAUNCH, of_work[graph.work[op]]),
        ),
    }
    some = np.stack([ready != start[op], np.ones(len(op), bool)], axis=1).ravel()
    return pd.DataFrame({name: np.stack(of, axis=1).ravel()[some] for name, of in columns.items()})


def _decisive(timeline: Timeline, ops: np.ndarray) -> np.ndarray:
    """Return the part that each op ends with, -1 without parts; of several, the lowest."""
    graph = timeline.graph
    _, ended = part_times(timeline)
    counts = np.diff(graph.part_start)[ops]
    owner = np.repeat(np.arange(len(ops)), counts)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    row += graph.part_start[ops][owner]
    when = ended[graph.part[row]] + graph.part_tail[row]
    order = np.lexsort((-graph.part[row], when, owner))
    out = np.full(len(ops), -1, np.int64)
    out[owner[order]] = graph.part[row[order]]  # the last of each owner stays
    return out


def _late(timeline: Timeline, pieces: pd.DataFrame) -> list[tuple[float, float, int]]:
    """Return (from, until, rank) for each wait of half of a collective for a rank, last first."""
    graph = timeline.graph
    collective = np.array([_collective(work) for work in graph.works], bool)
    part = pieces["part"].to_numpy()
    met = part >= 0
    met[met] = collective[graph.part_work[part[met]]]
    member = owners(graph.part_start)
    rows = np.flatnonzero(np.isin(graph.part, part[met]))
    rows = rows[np.lexsort((timeline.start[member[rows]], graph.part[rows]))]
    parts, first, size = np.unique(graph.part[rows], return_index=True, return_counts=True)
    came = timeline.start[member[rows]]
    weight = op_weights(graph)[member[rows]]
    half = lower_median(came, graph.part[rows].astype(np.int64), weight)[first]
    last = came[first + size - 1]
    at = np.searchsorted(parts, part[met])
    rank = graph.rank[pieces["op"].to_numpy()[met]]
    late = zip(half[at].tolist(), last[at].tolist(), rank.tolist(), strict=True)
    return sorted((one for one in late if one[0] < one[1]), key=lambda one: -one[1])


def _collective(work: Work) -> bool:
    if isinstance(work, Communication):
        return work.collective not in PEER_TO_PEER
    return dimension(work) not in ("pp", "p2p")


def _cut(frame: pd.DataFrame, late: list[tuple[float, float, int]]) -> pd.DataFrame:
    """Cut the rows where a wait for a straggler begins or ends, and mark those inside."""
    start, end = frame["start"].to_numpy(float), frame["end"].to_numpy(float)
    instants = np.unique([instant for one in late for instant in one[:2]])
    first = np.searchsorted(instants, start, "right")
    inside = np.maximum(np.searchsorted(instants, end, "left") - first, 0)
    row = np.repeat(np.arange(len(frame)), inside + 1)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
    at = np.append(instants, np.inf)  # where the nth piece of a row begins and ends
    out = frame.iloc[row].reset_index(drop=True)
    out["start"] = np.where(nth == 0, start[row], at[first[row] + nth - 1])
    out["end"] = np.where(nth == inside[row], end[row], at[first[row] + nth])
    begins, until = out["start"].to_numpy(), out["end"].to_numpy()
    straggler = np.full(len(out), -1, np.int64)
    for low, high, rank in late:
        a, b = np.searchsorted(begins, low), np.searchsorted(until, high, "right")
        straggler[a:b] = rank
    return out.assign(straggler=straggler)
