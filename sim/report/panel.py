"""One timeline of a page: its blocks in columns, and what the analyses found about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.analysis.activity import COMPUTE, activities
from sim.analysis.relations import binding, rendezvous
from sim.analysis.words import cause_name
from sim.graph import Floats, Graph, Ints, Longs, owners
from sim.memory.curve import Curve
from sim.report.found import categories, of_bubbles, of_memory, of_path
from sim.report.looks import looks
from sim.report.merge import MOST, Blocks, blocks, some_ranks
from sim.report.pack import Packer, Ticks, ticks
from sim.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

RANKS = 256
"""The ranks of a page at most; of more, so many are shown, spread evenly over all."""
_LETTERS = 200  # of a name


@dataclass(frozen=True, eq=False)
class Panel:
    """A timeline and what is to be shown with it; each part can be left out."""

    name: str
    timeline: Timeline
    path: pd.DataFrame | None = None  # of sim.analysis.path
    bubbles: pd.DataFrame | None = None  # of sim.analysis.bubbles
    memory: Mapping[int, Curve] = field(default_factory=dict)
    capacity: float | None = None  # bytes of a GPU


def short(text: str, letters: int = _LETTERS) -> str:
    """Return a name cut to at most ``letters``, with control characters made visible.

    >>> short("all_reduce"), short("x" * 9, 4), short("a\\nb")
    ('all_reduce', 'xxx…', 'a\\u2423b')
    """
    text = text if len(text) <= letters else text[: letters - 1] + "…"
    return "".join(c if c.isprintable() else "\u2423" for c in text)


def pack(panel: Panel, packer: Packer, most: int = MOST) -> dict[str, Any]:
    """Return what the page's script reads about one panel; its columns are added to ``packer``."""
    timeline, graph = panel.timeline, panel.timeline.graph
    kept = some_ranks(graph.ranks(), min(RANKS, max(most // 1024, 1)))
    mine = np.flatnonzero(np.isin(graph.rank, kept))
    streams = len(graph.streams)
    table, look = looks(graph)
    row = np.searchsorted(kept, graph.rank[mine]) * streams + graph.stream[mine]
    found = blocks(row, look[mine], timeline.start[mine], timeline.end[mine], most)
    found = Blocks(mine[found.order], found.begins)
    zero = float(timeline.start.min()) if len(graph) else 0.0
    clock = ticks(zero, zero + timeline.seconds)
    where = np.full(len(graph), -1, np.int64)  # the block of each op
    where[found.order] = np.repeat(np.arange(len(found)), found.counts)
    last, moves = rendezvous(timeline)
    columns = {
        **_times(timeline, moves, found, clock),
        **_facts(graph, found, look),
        **_causes(timeline, last, found, where),
        **_partners(graph, found, where),
        **of_path(panel.path, where, clock),
        **of_bubbles(panel.bubbles, where, clock, kept),
        **of_memory(panel.memory, clock, kept),
    }
    return {
        "name": short(panel.name),
        "seconds": timeline.seconds,
        "zero": zero,
        "ops": len(graph),
        "blocks": len(found),
        "largest": int(found.counts.max(initial=0)),
        "ranks": kept.tolist(),
        "all_ranks": len(graph.ranks()),
        "rows": _rows(graph, found, kept),
        "names": [short(name) for name in graph.names],
        "looks": table,
        "capacity": panel.capacity,
        "path_causes": categories(panel.path, "cause"),
        "bubble_causes": [cause_name(name) for name in categories(panel.bubbles, "cause")],
        "memory_ranks": [r for r in kept.tolist() if r in panel.memory],
        "columns": {name: packer.add(values) for name, values in columns.items()},
    }


def _rows(graph: Graph, found: Blocks, kept: Ints) -> list[dict[str, Any]]:
    """Return each rank's streams: ranks like it, name, whether kernels run there, blocks."""
    first = found.order[found.begins[:-1]]
    key = np.searchsorted(kept, graph.rank[first]) * len(graph.streams) + graph.stream[first]
    keys, begins = np.unique(key, return_index=True)
    ends = np.append(begins[1:], len(key))
    kinds = activities(graph)
    computing = np.bincount(
        graph.stream, kinds.code == kinds.names.index(COMPUTE), len(graph.streams)
    )
    return [
        {
            "rank": int(kept[k // len(graph.streams)]),
            "alike": graph.stands_for.get(int(kept[k // len(graph.streams)]), 1),
            "stream": short(graph.streams[k % len(graph.streams)], 60),
            "computes": bool(computing[k % len(graph.streams)]),
            "from": int(a),
            "to": int(b),
        }
        for k, a, b in zip(keys.tolist(), begins, ends, strict=True)
    ]


def _times(timeline: Timeline, moves: Floats, found: Blocks, clock: Ticks) -> dict[str, Any]:
    """Return each block's start, end, when its data begins to move, and the share that ops fill."""
    order, begins = found.order, found.begins[:-1]
    if not len(begins):
        return dict.fromkeys(("start", "end", "moves", "busy", "count"), order)
    seconds = np.add.reduceat(timeline.end[order] - timeline.start[order], begins)
    start = timeline.start[order[begins]]
    end = np.maximum.reduceat(timeline.end[order], begins)
    moving = np.minimum.reduceat(moves[order], begins)
    span = np.maximum(end - start, 1e-300)
    return {
        "start": clock.of(start),
        "end": clock.of(end),
        "moves": clock.of(np.minimum(moving, end)),
        "busy": np.rint(np.minimum(seconds / span, 1.0) * 200).astype(np.int64),
        "count": found.counts,
    }


def _facts(graph: Graph, found: Blocks, look: Longs) -> dict[str, Any]:
    first = found.order[found.begins[:-1]]
    return {
        "called": graph.name[first],
        "look": look[first],
        "stage": graph.stage[first],
        "microbatch": graph.microbatch[first],
        "layer": graph.layer[first],
        "step": graph.step[first],
    }


def _causes(timeline: Timeline, last: Longs, found: Blocks, where: Longs) -> dict[str, Any]:
    """Return the block whose end let each start, and the last of its rendezvous; -1 for none."""
    first = found.order[found.begins[:-1]]
    need, came = binding(timeline)[first], last[first]
    return {
        "need": np.where(need >= 0, where[need], -1),
        "last": np.where(came != first, where[came], -1),
    }


def _partners(graph: Graph, found: Blocks, where: Longs) -> dict[str, Any]:
    """Return the blocks of each part that has several blocks on the page, part by part.

    Merged blocks are left out, because they take part in too many.
    """
    member = owners(graph.part_start)
    block = where[member]
    single = (block >= 0) & (found.counts[np.maximum(block, 0)] == 1)
    part, block = graph.part[single], block[single]
    several = np.bincount(part, minlength=1)[part] > 1
    part, block = part[several], block[several]
    order = np.lexsort((block, part))
    return {"part": np.unique(part[order], return_inverse=True)[1], "member": block[order]}


def told_apart(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels, with different names where two have the same."""
    seen: dict[str, int] = {}
    out = []
    for panel in panels:
        seen[panel.name] = seen.get(panel.name, 0) + 1
        k = seen[panel.name]
        out.append(panel if k == 1 else replace(panel, name=f"{panel.name} ({k})"))
    return out
