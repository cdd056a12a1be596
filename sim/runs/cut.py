"""A graph without some of its ranks, whose groups then have fewer members that are simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.graph import Bools, Graph, offsets, owners
from sim.machine.hardware import Machine

COLUMNS = ("name", "work", "rank", "stream", "phase", "stage", "microbatch", "layer", "step", "lag")


def cut(graph: Graph, machine: Machine, keep: Bools) -> tuple[Graph, Machine]:
    """Return the graph of the ops to ``keep``, shape (ops,), without memory, and its prices.

    They are all ops of some ranks: no op waits for one of another rank.
    """
    ops, row = np.flatnonzero(keep), np.cumsum(keep) - 1
    waits, members = keep[owners(graph.wait_start)], keep[owners(graph.part_start)]
    parts, part = np.unique(graph.part[members], return_inverse=True)
    less = replace(
        graph,
        **{name: getattr(graph, name)[ops] for name in COLUMNS},
        wait_start=offsets(np.diff(graph.wait_start)[ops]),
        wait_on=row[graph.wait_on[waits]].astype(np.int32),
        wait_lag=graph.wait_lag[waits],
        part_start=offsets(np.diff(graph.part_start)[ops]),
        part=part.astype(np.int32),
        part_tail=graph.part_tail[members],
        part_work=graph.part_work[parts],
        memory_start=np.zeros(len(ops) + 1, np.int32),
        memory_category=graph.memory_category[:0],
        memory_bytes=graph.memory_bytes[:0],
        memory_at_end=graph.memory_at_end[:0],
    )
    factor = machine.factor
    return less, replace(machine, factor=None if factor is None else factor[ops])
