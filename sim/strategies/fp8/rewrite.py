"""What fp8 does to a job: linears in 8 bits, reductions of maxima, casts and copies of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sim.builder.blocks import OperatorBlock
from sim.builder.edge import Edge
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.builder.persistent import matrices
from sim.builder.program import Program
from sim.builder.programs import StepPlace
from sim.model.operators import Share
from sim.model.sizes import BYTES
from sim.recipe.recipe import TrainingSection
from sim.strategies.fp8 import maxima_and_casts as fp8
from sim.strategies.fp8.declare import precision
from sim.strategies.fp8.quantise import Quantised, is_linear


def share(part: Share, job: Job, cp_rank: int, ep_rank: int) -> Share:
    """Return the share of a rank whose linears run in fp8."""
    how = precision(job.training)
    return replace(part, linears=Quantised(how)) if how else part


def edges(job: Job) -> Mapping[str, Edge]:
    """Return where maxima are reduced."""
    return fp8.edges(job.parallelism, precision(job.training))


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...] | None:
    """Return the ranks of a stage, which reduce its maxima."""
    return tuple(sorted(job.ranks[..., q].ravel().tolist())) if axis == "amax" else None


def blocks(
    job: Job, part: Share, found: Sequence[OperatorBlock], last: bool
) -> Sequence[OperatorBlock]:
    """Return a stage with the reductions of its layers' maxima behind these, both ways."""
    layers = [k for k, block in enumerate(found) if block.layer >= 0]
    linears = sum(is_linear(op) for k in layers for op in found[k].operators)
    forward, backward = (fp8.maxima(part, linears, forward=way) for way in (True, False))
    if not forward:
        return found
    out, begin, end = list(found), layers[0], layers[-1]
    out.insert(end + 1, OperatorBlock(forward, found[end].layer))
    out.insert(begin, OperatorBlock(backward, found[begin].layer))
    return out


def on_rank(job: Job, made: Mapping[str, Program]) -> Mapping[str, Program]:
    """Return programs in which sharded weights are cast wherever they have been gathered."""
    how, element = precision(job.training), BYTES[job.training.dtype]
    if not how or not job.data.sharding:
        return made
    return {kind: fp8.cast_weights(of, how, element, sharded=True) for kind, of in made.items()}


def step(job: Job, items: Program, at: StepPlace) -> Program:
    """Return a first forward that makes fp8 copies of weights that are not sharded."""
    how = precision(job.training)
    if not how or job.data.sharding or (at.kind, at.place) != ("F", "first"):
        return items
    return fp8.cast_weights(items, how, BYTES[job.training.dtype], sharded=False)


def narrow(job: Job, stages: Sequence[int]) -> int:
    """Return how many parameters are kept in 8 bits."""
    how = precision(job.training)
    return matrices(job, stages) if how and how.params else 0


def gathered_less(training: TrainingSection) -> int:
    """Return by how many bytes an element of a layer's matrix is less where it is gathered."""
    how = precision(training)
    return BYTES[training.dtype] - 1 if how and how.gathers_params else 0


def persistent(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return what weights in 8 bits take less, and the other copies, which stay for all of a step.

    Copies of sharded parameters come and go with the gathered parameters.
    """
    how, out = precision(job.training), dict[str, float]()
    if how is None:
        return out
    linear = matrices(job, stages)
    experts = sum(job.held(s).expert for s in stages)
    if how.params:
        less = BYTES[job.training.dtype] - how.weight
        out["weights"] = -(job.data.weights(linear, experts) * less)
    more = how.copies - how.params
    if more and not job.data.sharding:
        out["fp8_weights"] = more * linear * how.weight
    return out
