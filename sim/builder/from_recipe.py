"""The job of a recipe: its setting, mesh and data parallelism, and when weights are updated."""

from __future__ import annotations

from typing import Any

import schedules
from sim.builder.job import Job
from sim.builder.mesh import Mesh
from sim.builder.strategies import sharded
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.exchange import Policy
from sim.builder.strategies.sharded import Fetch, Sharding
from sim.model.recomputation import Recompute
from sim.model.sizes import Setting
from sim.recipe.recipe import Recipe
from sim.recipe.sections import DeepSpeedTable, FsdpTable
from sim.units import BYTES


def without_plan(recipe: Recipe) -> Job:
    """Return the job of a recipe, without its plan."""
    p, training = recipe.parallelism, recipe.training
    interleaved = recipe.schedule.name == "interleaved_1f1b"
    return Job(
        model=recipe.architecture,
        setting=Setting(
            tp=p.tp,
            sp=p.sp,
            micro_batch=training.micro_batch,
            sequence=recipe.sequence,
            dtype=training.dtype,
            matmul=training.matmul or "",
            grad_dtype=training.grad_dtype,
            recompute=_recompute(recipe),
            tp_overlap=p.tp_overlap,
            tp_backward_overlap=p.tp_backward_overlap,
            cp=p.cp,
            cp_kind=p.cp_kind,
            cp_placement=p.cp_placement,
            ulysses=p.ulysses,
            ep=p.ep,
            etp=p.etp,
            offload=training.offloaded.activations or 0.0,
            offload_stages=training.offloaded.by == "stage",
            dp=p.dp or 1,
            fp8=training.fp8.precision if training.fp8 else None,
            weight_gradients=training.weight_gradients,
            strategy=p.strategy or "",
        ),
        data=data_parallel(recipe),
        mesh=mesh_of(recipe),
        plan=[],
        policy=Policy(p.p2p, paired=interleaved, ahead=1 if p.overlap_p2p else 0),
        layers_per_stage=recipe.layers_per_stage,
        scatter_gather=p.scatter_gather,
        pair=recipe.schedule.pair,
        **_updates(recipe),
    )


def _recompute(recipe: Recipe) -> str | Recompute:
    """Return what runs again: a word, or the rule that a table gives."""
    said = recipe.training.recompute
    if isinstance(said, str):
        return said
    uniform = said.method == "uniform"
    return Recompute(
        modules=said.modules,
        every=said.every or 1,
        fraction=1.0 if said.fraction is None else said.fraction,
        first=said.layers if said.method == "block" else None,
        together=said.layers or 1 if uniform else 1,
    )


def _updates(recipe: Recipe) -> dict[str, Any]:
    """Return when the weights are updated; see :class:`sim.builder.job.Job`."""
    if recipe.flushed:
        return {"steps": recipe.simulation.steps or 1}
    batch, name = recipe.microbatches, recipe.schedule.name
    stale = schedules.staleness(name, recipe.parallelism.pp, recipe.options.get("batch"))
    return {"batch": batch, "stale": tuple(stale)}


def mesh_of(recipe: Recipe) -> Mesh:
    """Return the axes over the recipe's ranks."""
    p = recipe.parallelism
    return Mesh(p.tp, p.cp, p.ep, p.dp or 1, p.pp, p.etp, p.order)


def data_parallel(recipe: Recipe) -> DataParallel:
    """Return the recipe's data parallelism, with sizes in bytes."""
    p, training = recipe.parallelism, recipe.training
    bucket = p.bucket_mb * 1e6
    if p.deepspeed:
        bucket = p.deepspeed.reduce_bucket_size * BYTES[training.grad_dtype]
    return DataParallel(
        degree=(p.dp or 1) * p.cp,
        experts=mesh_of(recipe).edp if recipe.model.experts and p.tp * p.ep * p.etp > 1 else None,
        zero=p.zero,
        instances=p.optimizer_instances,
        overlap_grad_reduce=p.overlap_grad_reduce,
        overlap_param_gather=p.overlap_param_gather,
        bucket=bucket,
        first_bucket=p.first_bucket_mb and p.first_bucket_mb * 1e6,
        bucket_view=p.gradient_as_bucket_view,
        accumulate=bool(p.accumulate),
        dtype=training.dtype,
        grad_dtype=training.grad_dtype,
        sharding=_sharding(recipe),
        fp8=training.fp8 is not None and training.fp8.precision.gathers_params,
        host_share=training.offloaded.optimizer or 0.0,
        host_overlap=training.offloaded.overlap,
        optimizer=training.optimizer,
        state=training.optimizer_state.state if training.optimizer_state else None,
        foreach=training.foreach,
        clip=training.clip,
    )


def _sharding(recipe: Recipe) -> Sharding | None:
    p = recipe.parallelism
    degree = (p.dp or 1) * p.cp
    if p.zero == 3:
        return sharded.zero3(degree, _fetch(p.deepspeed))
    return _fsdp(p.fsdp, degree) if p.fsdp else None


def _fetch(sizes: DeepSpeedTable | None) -> Fetch | None:
    """Return DeepSpeed's sizes; without them ZeRO-3 gathers one layer ahead and keeps nothing."""
    if sizes is None:
        return None
    return Fetch(
        sizes.stage3_prefetch_bucket_size,
        sizes.stage3_max_live_parameters,
        sizes.stage3_max_reuse_distance,
    )


def _fsdp(table: FsdpTable, degree: int) -> Sharding:
    given = table.model_dump(exclude_none=True, exclude={"kind"})
    match table.kind:
        case "fsdp1":
            return sharded.fsdp1(degree, **given)
        case "fsdp2":
            return sharded.fsdp2(degree, **given)
    return sharded.yafsdp(degree, **given)
