"""What the parts of one simulation have in common."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

from sim.engine.clock import Clock
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Graph
from sim.machine.hardware import Machine


@dataclass
class Stats:
    """What sharing cost: how often activities met."""

    kernels_slowed: int = 0  # chains of kernels whose end moved
    flows: int = 0  # communications on links that others may use too
    flows_shared: int = 0  # of these, speeds that were found by sharing among several
    settled: int = 0  # instants after which something was shared anew


@dataclass(frozen=True)
class Run:
    """One simulation; for segments and their positions see :class:`~.segments.Segments`."""

    env: Clock
    graph: Graph
    segs: Segments
    machine: Machine
    facts: Uses
    stats: Stats
    complete: Callable[[int], None]  # a segment has ended
    bounds: array[float]  # of segment s: its start and its ends, from slot first[s] + s on
    first: list[int]
    turn: list[int]  # of each segment: which of the events of an instant is its own
    work: array[int]  # of each position
    alone: array[float]  # of each position: seconds when nothing else runs
