"""Of which tensors the activations of a stage are made, for :mod:`sim.analysis.reserved`."""

from __future__ import annotations

from sim.job import Job
from sim.layer import layer
from sim.operators import Share
from sim.strategies import recompute, share


def pieces(job: Job) -> dict[tuple[int, str], tuple[float, ...]]:
    """Bytes of the tensors that each stage keeps of one microbatch, in forward order.

    An operator's are one tensor; a layer's too, where recomputation leaves neither all nor all but
    the attention core.
    """
    part = share(job.model, job.setting)
    found = {}
    for stage in range(job.stages):
        kept = [_layer(job, part, number) for number in job.layers(stage)]
        if tensors := tuple(size for of in kept for size in of if size):
            found[stage, "activations"] = tensors
    return found


def _layer(job: Job, part: Share, number: int) -> list[float]:
    operators = layer(job.model, part, number)
    kept = recompute.kept(operators, job.setting.recompute)
    for each in ([o.saved for o in operators], [o.saved for o in operators if not o.core]):
        if sum(each) == kept:
            return each
    return [kept]
