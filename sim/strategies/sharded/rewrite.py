"""What sharing parameters and gradients does to a job; its parts are in the files beside this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from sim.builder.groups import Lane
from sim.builder.groups import group as ranks_of
from sim.builder.job import Job
from sim.builder.persistent import gradient_bytes
from sim.builder.program import Program
from sim.builder.programs import StepPlace
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.messages import Steps
from sim.model.sizes import BYTES
from sim.strategies.sharded import gathering, kinds
from sim.strategies.sharded.flow import flow, keeps_behind_backward, left_gathered
from sim.strategies.sharded.tables import own
from sim.strategies.sharded.units import of_stage


def data(plain: DataParallel) -> DataParallel:
    """Return how replicas agree that share parameters, or reduce gradients in DeepSpeed's sizes."""
    said = own(plain.parallelism)
    sizes, grad = said.deepspeed, BYTES[plain.training.grad_dtype]
    return replace(
        plain,
        sharding=kinds.sharding(plain.parallelism, plain.degree),
        bucket=sizes.reduce_bucket_size * grad if sizes else plain.bucket,
        accumulates=bool(said.accumulate),
    )


def steps(job: Job, plain: Steps) -> Steps:
    """Return the steps of a pipeline with what its backwards leave gathered."""
    if not (keeps_behind_backward(job.data) and job.overlapping):
        return plain
    spans = (slice(*ends) for ends in pairwise(plain.begins.tolist()))
    left = [left_gathered(plain.stage[rank].tolist(), plain.kind[rank].tolist()) for rank in spans]
    return replace(plain, gathered=np.concatenate(left))


def step(job: Job, items: Program, at: StepPlace) -> Program:
    """Return a step that gathers the parameters it uses, and reduces gradients as it makes them."""
    if not job.data.split:
        return items
    of = gathering.StageStep(at.kind, at.place, job.overlapping, at.gathered)
    return gathering.shard(items, of, of_stage(job, at.stage), job.data, at.buckets)


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...] | None:
    """Return the ranks that share parameters between a forward and its backward."""
    of = flow(job.data)
    if axis != "reshard" or not of:
        return None
    replicas = ranks_of(job, "dp", lane, q)
    at = replicas.index(int(job.ranks[*lane, q])) // of.regroup * of.regroup
    return replicas[at : at + of.regroup]


def cuts(job: Job, stride: Mapping[str, int]) -> Sequence[int]:
    """Return where the groups end that share parameters between a forward and its backward."""
    of = flow(job.data)
    return [min(stride["cp"], stride["dp"]) * of.regroup] if of and of.regroup > 1 else []


def persistent(job: Job, stages: Sequence[int]) -> Mapping[str, float]:
    """Return the buffers that units use in turn, each as large as the largest unit."""
    shared = flow(job.data)
    if not shared or not shared.buffers:
        return {}
    units = [unit for s in stages for unit in of_stage(job, s) if not unit.kept]
    most = max((unit.parameters for unit in units), default=0)
    each = most * (BYTES[job.training.dtype] + gradient_bytes(job.training))
    return {"communication_buffers": float(shared.buffers * each)}


def alone(job: Job) -> Job:
    """Return the job on replicas that share nothing."""
    plain = {"zero": min(job.parallelism.zero, 1), "fsdp": None, "deepspeed": None}
    return replace(job, parallelism=job.parallelism.model_copy(update=plain))
