"""What a rank holds during the whole step: weights, gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim import strategies
from sim.builder.backward_memory import global_buffer, placeholders
from sim.builder.job import Job
from sim.builder.shares import share
from sim.builder.strategies.update import kept, on_gpu
from sim.model.sizes import BYTES, matrix_parameters
from sim.recipe.recipe import TrainingSection


def persistent(job: Job, stages: Sequence[int], q: int = 0) -> Mapping[str, float]:
    """Return the bytes by category on pipeline rank ``q``, which holds these stages.

    In mixed precision there are 2 + 2 + 12 bytes per parameter (Rajbhandari et al. 2019, section
    3.1), 2 + 4 + 12 with fp32 gradients, and less with another state of Adam
    (:func:`sim.builder.strategies.update.kept`). ZeRO-1 splits the 12 over the replicas, ZeRO-2
    also the gradients, ZeRO-3 and FSDP everything; experts are split over the ranks that hold the
    same ones. A pipeline without a flush also keeps
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
        **_buckets(job, held),
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


def gradient_bytes(training: TrainingSection) -> int:
    """Return the bytes of a gradient where it is made: autograd's own are kept in its dtype."""
    own = training.weight_gradients == "kept"
    return BYTES[training.dtype if own else training.grad_dtype]


def _buckets(job: Job, held: int) -> Mapping[str, float]:
    """Return DDP's buckets, if gradients are copied into them."""
    data = job.data
    if data.degree == 1 or job.parallelism.gradient_as_bucket_view or data.split:
        return {}
    return {"gradient_buffers": float(held * gradient_bytes(job.training))}
