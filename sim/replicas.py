"""How the replicas of a recipe agree, in words of :mod:`sim.strategies.data`."""

from __future__ import annotations

from sim.mesh import Mesh
from sim.recipe import Recipe
from sim.sections import DeepSpeedTable, FsdpTable
from sim.strategies import sharded
from sim.strategies.data import DataParallel
from sim.strategies.sharded import Fetch, Sharding
from sim.units import BYTES


def mesh_of(recipe: Recipe) -> Mesh:
    """The axes over the recipe's ranks."""
    p = recipe.parallelism
    return Mesh(p.tp, p.cp, p.ep, p.dp or 1, p.pp, p.etp, p.order)


def data_parallel(recipe: Recipe) -> DataParallel:
    """The recipe's data parallelism; sizes in bytes."""
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
        clip=training.clip,
    )


def _sharding(recipe: Recipe) -> Sharding | None:
    p = recipe.parallelism
    degree = (p.dp or 1) * p.cp
    if p.zero == 3:
        return sharded.zero3(degree, _fetch(p.deepspeed))
    return _fsdp(p.fsdp, degree) if p.fsdp else None


def _fetch(sizes: DeepSpeedTable | None) -> Fetch | None:
    """Without DeepSpeed's sizes, ZeRO-3 gathers a layer ahead and keeps nothing."""
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
