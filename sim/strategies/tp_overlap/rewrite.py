"""What overlap of tensor-parallel collectives does to a job; see ``pieces.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.builder.blocks import OperatorBlock
from sim.builder.job import Job
from sim.builder.program import Program
from sim.strategies.tp_overlap import pieces
from sim.strategies.tp_overlap.declare import keys


def beside(job: Job) -> bool:
    """Return whether the backward's collectives run beside weight-gradient GEMMs."""
    said = keys(job.parallelism)
    return said.tp_backward_overlap or bool(said.tp_overlap)


def programs(
    job: Job, made: Mapping[str, Program], blocks: Sequence[OperatorBlock], last: bool
) -> Mapping[str, Program]:
    """Return the programs of a stage with exposed collectives in pieces."""
    said = keys(job.parallelism).tp_overlap
    if not said:
        return made
    tp, copies = job.parallelism.tp, said == "copies"
    return {kind: pieces.cut(items, tp, copies) for kind, items in made.items()}
