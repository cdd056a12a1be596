"""Where what runs keeps its state: a queue runs one segment at a time, so each queue has places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Graph, Longs
from sim.machine.hardware import Machine


@dataclass(frozen=True, eq=False)
class Places:
    """Places for parts that run, and numbers for events.

    A part has the place of its first member's op, whose queue has as many places as its largest op
    has parts. So no two parts that run have the same, and none is ever sought.
    """

    queue: Longs  # of each segment
    queues: int
    gpu_queue: Longs  # of each GPU, its first; one more than there are
    queue_flow: Longs  # of each queue, its first place; one more than there are
    part_flow: Longs  # of each part: its place
    part_node: Longs  # of each part that loads shared links: the first of its places on them
    nodes: int
    events: tuple[int, ...]  # where numbers of each kind begin, see sim.engine.compiled.fields
    all_events: int

    @property
    def flows(self) -> int:
        """How many parts can run at the same time."""
        return int(self.queue_flow[-1])


def places(graph: Graph, segs: Segments, facts: Uses, machine: Machine) -> Places:
    """Give every part a place, and every kind of event its numbers."""
    heads = np.flatnonzero(segs.heads)
    queue, queues = np.cumsum(segs.heads) - 1, len(heads)
    gpu_queue = np.searchsorted(segs.rank[heads], np.arange(len(segs.ranks) + 1))
    counts = np.diff(segs.part_start)
    queue_flow = _begins(np.maximum.reduceat(counts, heads))
    first = np.zeros(len(graph.part), np.bool_)  # memberships of each part's first member
    some = facts.members > 0
    first[facts.member[facts.member_start[:-1][some]]] = True
    rows = np.flatnonzero(first[segs.part_row])
    part, own = graph.part[segs.part_row[rows]], np.repeat(np.arange(len(segs)), counts)[rows]
    part_flow = np.zeros(len(graph.part_work), np.int64)
    part_flow[part] = queue_flow[queue[own]] + rows - segs.part_start[own]
    part_node, nodes = np.zeros_like(part_flow), 0
    if facts.on_links.any():
        links = np.zeros(len(segs.part_row), np.int64)
        work = graph.part_work[part]
        links[rows] = np.where(facts.on_links[work], np.diff(machine.link_start)[work], 0)
        ahead = _begins(links)
        of_segment = ahead[segs.part_start]
        queue_node = _begins(np.maximum.reduceat(np.diff(of_segment), heads))
        part_node[part] = queue_node[queue[own]] + ahead[rows] - of_segment[own]
        nodes = int(queue_node[-1])
    tails = len(graph.part) if graph.part_tail.any() else 0
    lags = len(segs.waiter) if segs.waiter_lag.any() else 0
    flows = int(queue_flow[-1])
    each = (queues, queues, flows, flows, tails, lags)
    events = np.cumsum(each).tolist()
    return Places(
        queue=queue,
        queues=queues,
        gpu_queue=gpu_queue,
        queue_flow=queue_flow,
        part_flow=part_flow,
        part_node=part_node,
        nodes=nodes,
        events=tuple(events[:-1]),
        all_events=events[-1],
    )


def _begins(counts: Longs) -> Longs:
    return np.append(0, np.cumsum(counts, dtype=np.int64))
