"""What offload does to a job; the copies themselves are in the files beside this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sim.builder.activations import stage_bytes
from sim.builder.blocks import OperatorBlock
from sim.builder.job import Job
from sim.builder.program import Item, Program
from sim.builder.programs import StepPlace
from sim.builder.strategies import update
from sim.builder.strategies.data import DataParallel
from sim.model.sizes import BYTES
from sim.recipe.recipe import TrainingSection
from sim.recipe.sections import StateTable
from sim.strategies.offload import activations, optimizer
from sim.strategies.offload.declare import table


def programs(
    job: Job, made: Mapping[str, Program], blocks: Sequence[OperatorBlock], last: bool
) -> Mapping[str, Program]:
    """Return the programs of a stage whose layers' activations go to the host and come back."""
    said = table(job.training)
    if not said.activations:
        return made
    each = {block.layer: block.kept for block in blocks if block.is_layer}
    if said.by == "layer":
        return activations.offloaded(made, each, said.activations, last)
    stays = last or not each
    return made if stays else activations.offloaded_whole(made, each, said.activations)


def step(job: Job, items: Program, at: StepPlace) -> Program:
    """Return a last backward that sends to the host what is final."""
    if at.place != "last" or not table(job.training).optimizer:
        return items
    left = optimizer.unreduced(at.whole, at.held, job.data, at.buckets)
    end = len(items) - 1
    moved = [b._replace(after=end) if at.buckets else b for b in left]
    return optimizer.sent(items, job.data, moved)


def reduced(items: Program, data: DataParallel) -> Program:
    """Return a tail that sends to the host what it has reduced."""
    return optimizer.sent(items, data) if table(data.training).optimizer else items


def on_gpu(training: TrainingSection) -> float:
    """Return the share of the parameters whose state the GPU has."""
    return 1 - (table(training).optimizer or 0.0)


def updates(share: float, data: DataParallel, norm: int, at: int) -> Sequence[Item]:
    """Return Adam on the host; a rank updates ``share`` parameters in all."""
    mine = share * (table(data.training).optimizer or 0.0)
    if not mine:
        return ()
    return optimizer.update(mine, update.on_host(data.training), data, norm, at)


def persistent(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return the buffers for whole stages' activations; the last stage's activations stay."""
    said, sent = table(job.training), [k for k in stages if k < job.stages - 1]
    if said.by != "stage":
        return {}
    sizes = (stage_bytes(job, job.layers(k), False, False).get("activations", 0.0) for k in sent)
    size = activations.BUFFERS * (said.activations or 0.0) * max(sizes, default=0.0)
    return {"offload_buffers": size} if size else {}


def on_host(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return Adam's moments, the master copy and a gradient in fp32 of the host's parameters."""
    parts = [job.held(s) for s in stages]
    held, experts = (sum(getattr(of, name) for of in parts) for name in ("total", "expert"))
    mine = job.data.share(held, experts) * (table(job.training).optimizer or 0.0)
    if not mine:
        return {}
    state = job.training.optimizer_state or StateTable()
    whole = BYTES[state.master] + state.moments  # the copy is there even if weights are fp32
    return {"optimizer": mine * whole, "gradients": mine * update.MAIN}


def alone(job: Job) -> Job:
    """Return the job without copies of activations, which run beside a stage's kernels."""
    return replace(job, training=job.training.model_copy(update={"offload": None}))
