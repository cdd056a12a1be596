"""When each op ran. Every analysis and every picture reads a timeline and nothing else.

Simulated and recorded runs are treated alike: the engine returns a timeline, and so does a trace
reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim import units
from sim.graph import PHASES, Communication, Fixed, Floats, Graph, Longs
from sim.html import table
from sim.late import pd


@dataclass(frozen=True, eq=False)
class Timeline:
    """A graph and two columns of shape (n,): the seconds at which each op started and ended."""

    graph: Graph
    start: Floats
    end: Floats

    @cached_property
    def seconds(self) -> float:
        """Seconds from the first start to the last end."""
        first, last = self.span
        return last - first

    @cached_property
    def span(self) -> tuple[float, float]:
        """The first start and the last end, in seconds; both 0 without ops."""
        return (float(self.start.min()), float(self.end.max())) if len(self.graph) else (0.0, 0.0)

    def __repr__(self) -> str:
        """Return the line that a prompt shows."""
        return f"Timeline: {len(self.graph):,} ops in {units.seconds(self.seconds)}"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows: a row per stream, its ops and their seconds."""
        streams = self.graph.by_stream()
        rows = ((rank, of, f"{len(ops):,}", _seconds(self, ops)) for rank, of, ops in streams)
        return table(repr(self), rows, ("rank", "stream", "ops", "running or waiting"))

    def on(self, rank: int, stream: str) -> Longs:
        """Return the indices of one stream's ops in the order in which they ran."""
        graph = self.graph
        if stream not in graph.streams:
            return np.empty(0, np.int64)
        mine = (graph.rank == rank) & (graph.stream == graph.streams.index(stream))
        return np.flatnonzero(mine)

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with one row per op.

        Its columns are name, rank, stream, phase, stage, microbatch, layer, kind, and start and end
        in seconds.
        """
        graph = self.graph
        kinds = np.array([kind(work) for work in graph.works], object)

        def labels(codes: NDArray[np.integer], table: tuple[str, ...]) -> pd.Categorical:
            return pd.Categorical.from_codes(codes, list(table))  # type: ignore[arg-type]

        return pd.DataFrame(
            {
                "name": labels(graph.name, graph.names),
                "rank": graph.rank,
                "stream": labels(graph.stream, graph.streams),
                "phase": labels(graph.phase, PHASES),
                "stage": graph.stage,
                "microbatch": graph.microbatch,
                "layer": graph.layer,
                "kind": pd.Categorical(kinds[graph.work]),
                "start": self.start,
                "end": self.end,
            }
        )


def _seconds(timeline: Timeline, ops: Longs) -> str:
    return units.seconds(float((timeline.end[ops] - timeline.start[ops]).sum()))


def dimension(work: object) -> str:
    """Return the parallel dimension (tp, dp, pp, ...) of a communication, or "" for other work."""
    match work:
        case Communication(dimension=of):
            return of
        case Fixed(kind="communication", dimension=of):
            return of or "communication"
    return ""


def kind(work: object) -> str:
    """Return the kind of a work: gemm, norm, all_reduce, copy, ...

    >>> kind(Communication("all_reduce", 8.0, (0, 1), "tp"))
    'all_reduce'
    """
    match work:
        case Communication(collective=of):
            return of
        case Fixed(kind=of):
            return of
    return getattr(work, "kind", "copy")
