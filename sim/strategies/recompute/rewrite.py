"""What recomputation does to a job: layers keep less, and run again in their backward."""

from __future__ import annotations

from collections.abc import Sequence

from sim.builder.blocks import OperatorBlock
from sim.builder.job import Job
from sim.model.operators import Share
from sim.strategies.recompute import plans
from sim.strategies.recompute.declare import rule
from sim.strategies.recompute.rule import flops


def blocks(
    job: Job, part: Share, found: Sequence[OperatorBlock], last: bool
) -> Sequence[OperatorBlock]:
    """Return a stage whose layers keep less; all layers behind the model's last one run again."""
    said, out = rule(job.training), list(found)
    own = [k for k, b in enumerate(found) if b.is_layer and b.layer < job.model.layers]
    for k, block in enumerate(found):
        if block.is_layer and k not in own:
            out[k] = plans.planned(block, said, part)
    for k, block in zip(own, plans.of_stage([found[k] for k in own], said, part), strict=True):
        out[k] = block
    return out


def rerun(job: Job) -> float:
    """Return the FLOPs that run again in one step."""
    batch, sequence = job.training.global_batch, job.model.sequence
    said, split = rule(job.training), job.layers_per_stage
    return flops(job.model, batch, sequence, said, job.parallelism.tp, split)
