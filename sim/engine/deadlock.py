"""The error of a run that cannot go on: which streams are stuck, at which op, and why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.graph import Bools, Graph, owners
from sim.late import nx

Flags = Bools


class DeadlockError(RuntimeError):
    """Some ops can never run; the message names the stuck streams, their ops and their waits."""

    def __init__(self, graph: Graph, started: Flags, ended: Flags) -> None:
        stuck = {  # stream -> the op at its head
            (rank, stream): int(ops[np.argmin(ended[ops])])
            for rank, stream, ops in graph.by_stream()
            if not ended[ops].all()
        }
        waits: nx.DiGraph[tuple[int, str]] = nx.DiGraph()
        for key, head in stuck.items():
            for need in _needs(graph, head, started, ended):
                waits.add_edge(key, (int(graph.rank[need]), graph.streams[graph.stream[need]]))
        cycle = _cycle(waits) or list(stuck)
        lines = [_line(graph, key, stuck[key], started, ended) for key in cycle]
        super().__init__(
            f"deadlock: {len(stuck)} streams are stuck; each of these waits for the next:\n"
            + "\n".join(lines)
        )
        self.cycle = cycle


def _needs(graph: Graph, head: int, started: Flags, ended: Flags) -> Iterator[int]:
    """Yield the ops that the op at the head of a stuck stream waits for."""
    if not started[head]:
        yield from (int(i) for i in graph.waits(head) if not ended[i])
        return
    parts = graph.parts(head)
    owner = owners(graph.part_start)
    for i in owner[np.isin(graph.part, parts)]:
        if not started[i]:
            yield int(i)


def _cycle(waits: nx.DiGraph[tuple[int, str]]) -> list[tuple[int, str]]:
    try:
        return [edge[0] for edge in nx.find_cycle(waits)]
    except nx.NetworkXNoCycle:
        return []


def _line(graph: Graph, key: tuple[int, str], head: int, started: Flags, ended: Flags) -> str:
    needs = list(_needs(graph, head, started, ended))
    names = ", ".join(_where(graph, i) for i in needs[:3]) + (", ..." if len(needs) > 3 else "")
    doing = "has started and waits for" if started[head] else "waits for"
    return (
        f"  rank {key[0]}, stream {key[1]}: {_what(graph, head)} {doing} {names or 'nothing known'}"
    )


def _what(graph: Graph, i: int) -> str:
    op = graph.op(i)
    return op.name if op.microbatch < 0 else f"{op.name} of microbatch {op.microbatch}"


def _where(graph: Graph, i: int) -> str:
    op = graph.op(i)
    return f"{_what(graph, i)} on rank {op.rank}, stream {op.stream}"
