"""What a rank holds during the whole step: weights, gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim import strategies
from sim.builder.backward_memory import global_buffer, placeholders
from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.strategies.update import kept, on_gpu
from sim.model.sizes import BYTES, matrix_parameters, parameters
from sim.strategies.sharded.kinds import reused
from sim.strategies.sharded.units import Unit, sizes, units


def persistent(job: Job, stages: Sequence[int], q: int = 0) -> Mapping[str, float]:
    """Return the bytes by category on pipeline rank ``q``, which holds these stages.

    In mixed precision there are 2 + 2 + 12 bytes per parameter (Rajbhandari et al. 2019, section
    3.1), 2 + 4 + 12 with fp32 gradients, and less with another state of Adam
    (:func:`sim.builder.strategies.update.kept`). ZeRO-1 splits the 12 over the replicas, ZeRO-2
    also the gradients, ZeRO-3 and FSDP everything; experts are split over the ranks that hold the
    same ones. YaFSDP's buffers hold its largest unit twice. A pipeline without a flush also keeps
    the weights of the updates before, one copy for each (PipeDream's stash, 2BW's second buffer).
    """
    parts = [job.held(s) for s in stages]
    held, experts = (sum(getattr(of, name) for of in parts) for name in ("total", "expert"))
    data, weight = job.data, BYTES[job.training.dtype]
    stale = job.stale[q] if job.stale else 0
    out = {
        "weights": data.weights(held, experts) * weight,
        **({"stashed_weights": float(stale * held * weight)} if stale else {}),
        "gradients": data.gradients(held, experts) * BYTES[job.training.grad_dtype],
        "optimizer": data.share(held, experts) * kept(job.training) * on_gpu(job.training),
        **_buffers(job, stages, held),
        **_workspaces(job, stages),
    }
    for found in strategies.hooks("persistent"):
        out |= {name: out.get(name, 0.0) + size for name, size in found(job, stages).items()}
    return out


def matrices(job: Job, stages: Sequence[int]) -> int:
    """Return the elements of a rank's matrices of layers, but for the router's."""
    p, model = job.parallelism, job.model
    return sum(
        matrix_parameters(model, p.tp, job.layers(k), k == job.stages - 1, p.ep, p.etp)
        for k in stages
    )


def on_host(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return the bytes by category that the host always holds for a rank with these stages."""
    out = dict[str, float]()
    for found in strategies.hooks("on_host"):
        out |= {name: out.get(name, 0.0) + size for name, size in found(job, stages).items()}
    return out


def _workspaces(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return the bytes of buffers that kernels got once and that are kept for their next run."""
    part = share(job)
    layers = [number for s in stages for number in job.layers(s)]
    cached = job.training.weight_gradients == "cached"
    sizes = {
        "placeholders": placeholders(job.model, part, layers) if cached else 0.0,
        "global_buffer": 0.0 if job.model.resnet else global_buffer(job.model, part),
    }
    return {category: size for category, size in sizes.items() if size}


def _buffers(job: Job, stages: Sequence[int], held: int) -> Mapping[str, float]:
    """Return what communication keeps: YaFSDP's buffers, and DDP's buckets that are copies."""
    data = job.data
    whole = job.training.weight_gradients == "kept"  # DDP's buckets hold autograd's gradients
    grad = BYTES[job.training.dtype if whole else job.training.grad_dtype]
    if data.degree > 1 and not (job.parallelism.gradient_as_bucket_view or data.split):
        return {"gradient_buffers": float(held * grad)}
    if not data.sharding or not data.sharding.buffers:
        return {}
    units = [unit for s in stages for unit in stage_units(job, s) if not unit.kept]
    most = max((unit.parameters for unit in units), default=0)
    each = most * (BYTES[job.training.dtype] + grad)
    return {"communication_buffers": float(data.sharding.buffers * each)}


def stage_units(job: Job, stage: int) -> list[Unit]:
    """Return the units of a stage, those that stay from the forward to the backward marked."""
    s, first, last = job.data.sharding, stage == 0, stage == job.stages - 1
    if s is None:
        return []
    apart = None if job.data.experts is None else (job.parallelism.ep, job.parallelism.etp)
    held = sizes(job.model, job.parallelism.tp, job.layers(stage), first, last, apart)
    found = units(held, s.wrap, s.root, job.model.tied and first and last)
    kept = [unit.kept or s.keep for unit in found]
    if s.fetch:
        order = sorted(range(len(found)), key=lambda k: _position(found[k], list(held)))
        soon = reused([found[k].parameters for k in order], s.fetch.max_reuse_distance)
        kept = [soon[order.index(k)] for k in range(len(found))]
    return [
        unit._replace(kept=keep, linear=_linear(job, unit))
        for unit, keep in zip(found, kept, strict=True)
    ]


def _linear(job: Job, unit: Unit) -> int:
    """Return how many of a unit's parameters multiply in fp8."""
    if not job.data.gathered_less:
        return 0
    if unit.experts:
        return unit.parameters
    layers, p = [owner for owner in sorted(unit.owners) if owner >= 0], job.parallelism
    if job.data.experts is None:
        return matrix_parameters(job.model, p.tp, layers)
    whole = matrix_parameters(job.model, p.tp, layers, False, p.ep, p.etp)
    return whole - parameters(job.model, p.tp, layers, False, False, p.ep, p.etp).expert


def _position(unit: Unit, owners: Sequence[int]) -> int:
    return min(owners.index(owner) for owner in unit.owners)
