"""A recorded graph without stragglers: nothing takes longer on one rank than on its peers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sim.analysis.activity import HOST
from sim.analysis.stragglers import equal
from sim.graph import Fixed, Floats, Graph, owners
from sim.longest import Seconds
from sim.timeline import Timeline, dimension, kind

Longs = NDArray[np.int64]
KEYS = ["name", "stage", "phase", "microbatch", "layer", "step", "stream"]


def across_ranks(graph: Graph) -> Graph:
    """Kernels, host calls and lags with the mean of those alike on all ranks.

    Alike are ops of the same name, place and stream (threads count by their order on a rank) that
    come as often before. So the ranks get to collectives together; what these take stays.
    """
    group = _alike(graph)
    seconds = np.array([of.seconds if isinstance(of, Fixed) else 0.0 for of in graph.works])
    alone = np.diff(graph.part_start) == 0
    level = _means(group, seconds[graph.work])
    owner = owners(graph.wait_start)
    nth = np.arange(len(owner)) - graph.wait_start[owner]
    waits = nth + (int(nth.max(initial=0)) + 1) * group[owner]
    return replace(
        with_seconds(graph, np.where(alone, level, seconds[graph.work])),
        lag=_means(group, graph.lag),
        wait_lag=_means(waits, graph.wait_lag),
    )


def across_kinds(graph: Graph, timeline: Timeline) -> Graph:
    """What the OSDI '25 study calls ideal: see :func:`sim.analysis.stragglers.equal`."""
    return with_members(graph, equal(timeline))


def _means(group: Longs, values: Floats) -> Floats:
    return np.asarray(pd.Series(values).groupby(group).transform("mean"), np.float64)


def _alike(graph: Graph) -> Longs:
    """A number for each set of ops that are alike."""
    frame = pd.DataFrame({key: getattr(graph, key) for key in [*KEYS, "rank"]})
    host = np.array([name.startswith((HOST, "thread")) for name in graph.streams])[graph.stream]
    threads = frame[host].groupby(["rank", "stream"], sort=False).ngroup()
    first = threads.groupby(frame["rank"][host]).transform("min")
    frame["stream"] = frame["stream"].astype(np.int64)
    frame.loc[host, "stream"] = (-1 - (threads - first)).astype(np.int64)
    nth = frame.groupby([*KEYS, "rank"], sort=False).cumcount()
    numbers = frame.assign(nth=nth).groupby([*KEYS, "nth"], sort=False).ngroup()
    return np.asarray(numbers, np.int64)


def with_seconds(graph: Graph, seconds: Floats) -> Graph:
    """The graph whose ops take these seconds; what parts take stays."""
    table: dict[Fixed, int] = {}
    work = _rows(graph, graph.work.tolist(), seconds, table)
    part = [graph.works[row] for row in graph.part_work.tolist()]
    fixed = [of if isinstance(of, Fixed) else Fixed(0.0) for of in part]
    part_work = [table.setdefault(of, len(table)) for of in fixed]
    return replace(
        graph,
        works=tuple(table),
        work=np.array(work, np.int32),
        part_work=np.array(part_work, np.int32),
    )


def with_members(graph: Graph, seconds: Seconds) -> Graph:
    """The graph with seconds of ops and of each membership, once all members are there."""
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
        part_tail=seconds.member - least[graph.part],
    )


def _rows(graph: Graph, works: list[int], seconds: Floats, table: dict[Fixed, int]) -> list[int]:
    sorts = [Fixed(0.0, kind(of), dimension(of)) for of in graph.works]
    made = (
        sorts[row]._replace(seconds=of) for row, of in zip(works, seconds.tolist(), strict=True)
    )
    return [table.setdefault(of, len(table)) for of in made]
