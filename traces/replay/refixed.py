"""Gives a graph other seconds: its fixed works are made anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.analysis.longest import Seconds
from sim.graph import Fixed, Floats, Graph
from sim.timeline import dimension, kind


def with_members(graph: Graph, seconds: Seconds, tail: Floats) -> Graph:
    """Return the graph with these seconds of ops and of parts, and these tails.

    A part takes the least of its members' seconds.
    """
    table: dict[Fixed, int] = {}
    least = np.full(len(graph.part_work), np.inf)
    np.minimum.at(least, graph.part, seconds.member)
    work = _rows(graph, graph.work.tolist(), seconds.op, table)
    part_work = _rows(graph, graph.part_work.tolist(), least, table)
    return replace(
        graph,
        works=tuple(table),
        work=np.array(work, np.int32),
        part_work=np.array(part_work, np.int32),
        part_tail=tail,
    )


def _rows(graph: Graph, works: list[int], seconds: Floats, table: dict[Fixed, int]) -> list[int]:
    sorts = [Fixed(0.0, kind(of), dimension(of)) for of in graph.works]
    made = (
        sorts[row]._replace(seconds=of) for row, of in zip(works, seconds.tolist(), strict=True)
    )
    return [table.setdefault(of, len(table)) for of in made]
