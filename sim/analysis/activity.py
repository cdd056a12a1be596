"""A helper of analyses: what each op does: compute, copy, communicate, or work of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.analysis.remembered import remembered
from sim.graph import Copy, Fixed, Graph, Host, Longs, Work, ascending, run_starts
from sim.timeline import dimension

COMPUTE, HOST, COPY = "compute", "host", "copy"


class Activities(NamedTuple):
    """The distinct activities, and for every op the row of its activity."""

    names: tuple[str, ...]  # "compute", "host", then dimensions ("tp", ..., "copy") in order
    code: NDArray[np.int16]


@remembered
def activities(graph: Graph) -> Activities:
    """Sort ops into computing, host work, and transfers by their dimension.

    Copies between host and device count as a dimension of their own, "copy": like communication,
    they can hide behind computing or be exposed. Ops on a stream called "host" do not occupy the
    GPU.
    """
    of_work = [activity(work) for work in graph.works]
    names = (COMPUTE, HOST, *sorted({*of_work} - {COMPUTE, HOST}))
    table = np.array([names.index(name) for name in of_work], np.int16)
    code = table[graph.work]
    if HOST in graph.streams:
        code[graph.stream == graph.streams.index(HOST)] = names.index(HOST)
    code.flags.writeable = False
    return Activities(names, code)


def activity(work: Work) -> str:
    """Return the activity of an op with this work: "compute", "host", "copy" or a dimension.

    >>> activity(Fixed(2.0)), activity(Fixed(2.0, "communication", "dp"))
    ('compute', 'dp')
    """
    if isinstance(work, Fixed) and work.kind in (HOST, COPY):
        return work.kind
    if isinstance(work, Host):
        return HOST
    return dimension(work) or (COPY if isinstance(work, Copy) else COMPUTE)


def by_rank(graph: Graph) -> Iterator[tuple[int, Longs]]:
    """Yield every rank, ascending, with its ops in the order of the graph."""
    order = ascending(graph.rank_rows())
    begins = run_starts(graph.rank[order])
    for own in np.split(order, begins[1:]) if len(order) else ():
        yield int(graph.rank[own[0]]), own
