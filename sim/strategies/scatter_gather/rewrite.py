"""Scatter-gather (Narayanan et al. 2021, arXiv:2104.04473, section 4.1).

Each rank of tp sends only its part of a pipeline message, all of which the receiver's have alike,
and these gather the parts inside their node.
"""

from __future__ import annotations

from sim.builder import slots
from sim.builder.job import Job
from sim.builder.program import Collective, Program
from sim.strategies.scatter_gather.declare import scatters


def boundary(job: Job, size: float) -> float:
    """Return the bytes of a message: a rank sends its part."""
    return size / job.parallelism.tp if scatters(job.parallelism) else size


def received(job: Job, items: Program, kind: str) -> Program:
    """Return a step that first gathers its input over tp."""
    tp = job.parallelism.tp
    if tp == 1 or not scatters(job.parallelism):
        return items
    whole, phase = job.boundary_bytes * tp, "F" if kind == "F" else "I"
    name, needs = "input_all_gather", slots.inputs(1)
    gather = Collective(name, "tp", "all_gather", whole, phase, needs=needs)
    place = range(1, len(items) + 1)
    first, *others = [item._replace(needs=slots.moved(item.needs, place)) for item in items]
    return [gather, first._replace(needs=(*first.needs, 0)), *others]
