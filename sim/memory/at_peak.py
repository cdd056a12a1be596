"""What a rank holds at its memory peak besides its persistent memory.

Each row is a net: the bytes that ops of a category, stage, microbatch and layer have allocated and
not yet freed. Where one layer, microbatch or stage frees what another allocated, they are one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.builder.host import HOST, launches
from sim.graph import PHASES, Floats, Graph, Longs, run_starts
from sim.memory.curve import Changes, changes
from sim.timeline import Timeline

Place = tuple[str, int, int, int]
"""A category, stage, microbatch and layer; -1 where there is none, or several."""
KEPT = "activations"
NOTHING = 1e-9  # of the peak: what rounding leaves of a net


class Live(NamedTuple):
    """Bytes of one category, stage, microbatch and layer (-1: of none, or of several)."""

    category: str
    stage: int
    microbatch: int
    layer: int
    bytes: float


@dataclass(frozen=True)
class AtPeak:
    """What is live at the memory peak of one rank."""

    rank: int
    op: str
    """The op at whose start or end the peak is reached."""
    live: tuple[Live, ...]
    """The rows, the largest first."""
    deferred: frozenset[tuple[int, int]] = frozenset()
    """The (stage, microbatch) pairs whose I has ended and whose W has not begun."""


def at_peak(timeline: Timeline) -> list[AtPeak]:
    """Return what is live at the peak of every simulated rank, by rank."""
    halves = _halves(timeline.graph)
    return [_of_rank(timeline, rank, rows, halves.get(rank)) for rank, rows in changes(timeline)]


def nets(sums: Mapping[Place, float]) -> tuple[Live, ...]:
    """Return the rows of what is live, the largest first.

    Places of which one frees what another allocated are joined.

    >>> [row[1:] for row in nets({("a", 0, 0, 1): 4.0, ("a", 0, 0, 2): -1.0, ("a", 0, 1, 1): 5.0})]
    [(0, 1, 1, 5.0), (0, 0, -1, 3.0)]
    """
    rows = dict(sums)
    least = NOTHING * fsum(map(abs, rows.values()))
    for k in (3, 2, 1):  # over layers, microbatches, stages
        taken = {place[:k] for place, size in rows.items() if size < -least}
        joined: dict[Place, float] = {}
        for place, size in rows.items():
            wide = _wide(place, k) if place[:k] in taken else place
            joined[wide] = joined.get(wide, 0.0) + size
        rows = joined
    live = [Live(*place, size) for place, size in rows.items() if size > least]
    return tuple(sorted(live, key=lambda row: (-row.bytes, row[:4])))


def _wide(place: Place, kept: int) -> Place:
    """Return the place with only its first ``kept`` columns, and -1 in the others."""
    category, *rest = place
    stage, microbatch, layer = (one if k < kept else -1 for k, one in enumerate(rest, 1))
    return category, stage, microbatch, layer


def _halves(graph: Graph) -> dict[int, Longs]:
    """Return the kernels of I and W of each rank; none where no backward is split in two."""
    halves = np.isin(graph.phase, [PHASES.index(phase) for phase in "IW"])
    if not (graph.phase == PHASES.index("W")).any():
        return {}
    compute = np.array([name.startswith("compute") for name in graph.streams])
    ops = np.flatnonzero(halves & compute[graph.stream])
    ops = ops[np.argsort(graph.rank[ops], kind="stable")]
    begins = run_starts(graph.rank[ops])
    return {int(graph.rank[own[0]]): own for own in np.split(ops, begins[1:]) if len(own)}


def _of_rank(timeline: Timeline, rank: int, rows: Changes, halves: Longs | None) -> AtPeak:
    graph = timeline.graph
    k = int(np.argmax(np.append(0.0, np.cumsum(rows.bytes))))
    if not k:
        return AtPeak(rank, "", ())
    op = rows.op[:k]
    live = nets(_sums(graph, op, rows.category[:k], rows.bytes[:k]))
    last = int(op[-1])
    deferred: frozenset[tuple[int, int]] = frozenset()
    if halves is not None:
        deferred = _deferred(timeline, halves, rows, float(rows.seconds[k - 1]), live)
    return AtPeak(rank, _called(timeline, last), live, deferred)


def _sums(graph: Graph, op: Longs, category: NDArray[np.int8], size: Floats) -> dict[Place, float]:
    """Return the bytes of each place, in the order of the places; those that sum to 0 are left out.

    Changes are given as op, category and bytes.
    """
    columns = (category, graph.stage[op], graph.microbatch[op], graph.layer[op])
    codes = [one.astype(np.int64) + 1 for one in columns]
    at = np.ravel_multi_index(codes, [int(one.max()) + 1 for one in codes])
    _, first, which = np.unique(at, return_index=True, return_inverse=True)
    sums = np.bincount(which, size).tolist()
    places = zip(*(one[first].tolist() for one in columns), strict=True)
    return {
        (graph.categories[name], *place): of
        for (name, *place), of in zip(places, sums, strict=True)
        if of
    }


def _deferred(
    timeline: Timeline, mine: Longs, rows: Changes, now: float, live: Iterable[Live]
) -> frozenset[tuple[int, int]]:
    """Return the (stage, microbatch) pairs whose activations only a W to come needs: I has ended.

    ``mine`` are the rank's kernels of I and W. This is known from them, or from their launches if
    these allocate and free memory.
    """
    graph = timeline.graph
    held = list({(row.stage, row.microbatch) for row in live if row.category == KEPT})
    if HOST in graph.streams and np.all(graph.stream[rows.op] == graph.streams.index(HOST)):
        mine = launches(graph, mine)
    which = _which(held, graph.stage[mine], graph.microbatch[mine])
    mine, which = mine[which >= 0], which[which >= 0]
    over, begins = np.full(len(held), -np.inf), np.full(len(held), np.inf)
    inputs, weights = (graph.phase[mine] == PHASES.index(phase) for phase in "IW")
    np.maximum.at(over, which[inputs], timeline.end[mine[inputs]])
    np.minimum.at(begins, which[weights], timeline.start[mine[weights]])
    waits = (-np.inf < over) & (over <= now) & (over <= begins) & (begins < np.inf)
    return frozenset(place for place, yes in zip(held, waits.tolist(), strict=True) if yes)


def _which(
    places: Sequence[tuple[int, int]], stage: NDArray[np.integer], microbatch: NDArray[np.integer]
) -> Longs:
    """Return the row of ``places`` of each stage and microbatch, -1 where they are none of them."""
    some = np.array(places, np.int64).reshape(-1, 2).T + 1  # -1 is a value too
    columns = stage.astype(np.int64) + 1, microbatch.astype(np.int64) + 1
    shape = [
        max(int(a.max(initial=0)), int(b.max(initial=0))) + 1
        for a, b in zip(some, columns, strict=True)
    ]
    row = np.full(shape, -1, np.int64)
    row[*some] = np.arange(len(places))
    return row[columns]


def _called(timeline: Timeline, i: int) -> str:
    op = timeline.graph.op(i)
    where = [f"phase {op.phase}"] * bool(op.phase)
    where += [f"stage {op.stage}"] * (op.stage >= 0)
    where += [f"layer {op.layer}"] * (op.layer >= 0)
    where += [f"microbatch {op.microbatch}"] * (op.microbatch >= 0)
    return f"{op.name} ({', '.join(where)})" if where else op.name


def in_flight(of: AtPeak) -> dict[int, list[int]]:
    """Return, by stage, the microbatches whose activations are held for a backward to come."""
    out: dict[int, list[int]] = {}
    for row in of.live:
        place = (row.stage, row.microbatch)
        if row.category == KEPT and row.microbatch >= 0 and place not in of.deferred:
            out.setdefault(row.stage, []).append(row.microbatch)
    return {stage: sorted({*found}) for stage, found in sorted(out.items())}


def listed(numbers: Sequence[int]) -> str:
    """Return the numbers as people write them.

    >>> listed([3]), listed([0, 1, 2, 3]), listed([1, 4])
    ('3', '0 to 3', '1, 4')
    """
    if len(numbers) > 2 and list(numbers) == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
