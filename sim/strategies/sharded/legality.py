"""Whether replicas can share parameters and gradients as a recipe says, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedules.input_error import InputError
from sim.strategies.recompute.declare import rule
from sim.strategies.sharded.tables import OWN, FsdpTable, asked, own

if TYPE_CHECKING:
    from sim.recipe.recipe import ParallelismSection, Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for what ZeRO-2, ZeRO-3 and FSDP cannot do, or not together."""
    p, fsdp, what = recipe.parallelism, own(recipe.parallelism).fsdp, asked(recipe.parallelism)
    _options(p)
    if fsdp and p.zero:
        raise InputError(
            f"parallelism.zero = {p.zero} and parallelism.fsdp are both given; "
            "leave one of them out"
        )
    if not what:
        return
    _others(recipe, what)
    if (p.dp or 1) * p.cp == 1:
        raise InputError(f"{what} needs dp > 1 or cp > 1, replicas that share the parameters")
    if not p.overlap_grad_reduce:
        raise InputError(
            f"{what} needs overlap_grad_reduce = true: gradients are reduced as they are made"
        )
    if not recipe.flushed:
        raise InputError(
            f"{what} needs a schedule with a flush; {recipe.schedule.name} updates the weights "
            "while other microbatches use them"
        )
    if fsdp:
        _fsdp(fsdp, (p.dp or 1) * p.cp, bool(own(p).accumulate))
    if fsdp and recipe.model.experts and p.tp * p.ep * p.etp > 1:
        _experts(p, fsdp)


def _others(recipe: Recipe, what: str) -> None:
    """Check what sharded parameters and gradients do not go with."""
    said = rule(recipe.training)
    for k, table in enumerate(recipe.perturbations):
        if table.replicas is not None:
            raise InputError(
                f"perturbations[{k}].noise.replicas does not go with {what}: it takes replicas "
                "that hold all parameters; leave one of them out"
            )
    if recipe.model.blocks:
        advice = "it must be 0 or 1" if recipe.parallelism.zero else "leave it out"
        raise InputError(
            f"{what} is not simulated with model.blocks, which run data parallel only; {advice}"
        )
    if said.method == "uniform" and (said.layers or 1) > 1:
        raise InputError(
            "training.recompute of several layers at once (uniform) is not simulated with sharded "
            "parameters; layers must be 1"
        )


def _options(p: ParallelismSection) -> None:
    plain, sizes = not asked(p), own(p).deepspeed
    if sizes and (own(p).fsdp or p.zero < 2):
        raise InputError(
            "parallelism.deepspeed gives sizes for zero = 2 or 3; it needs one of them"
        )
    for key in ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance"):
        given = sizes and f"stage3_{key}" in sizes.model_fields_set
        if given and p.zero < 3:
            raise InputError(
                f"parallelism.deepspeed.stage3_{key} needs zero = 3, which gathers parameters"
            )
    if own(p).accumulate and plain:
        raise InputError(
            "parallelism.accumulate = true needs zero = 2 or 3, or fsdp: "
            "without them gradients are reduced on the last microbatch only"
        )
    if p.first_bucket_mb and not plain:
        raise InputError("parallelism.first_bucket_mb needs zero = 0 or 1, without fsdp")
    if not p.gradient_as_bucket_view and not plain:
        raise InputError(
            "parallelism.gradient_as_bucket_view = false needs zero = 0 or 1, without fsdp: "
            "the copies are DDP's"
        )


def _experts(p: ParallelismSection, fsdp: FsdpTable) -> None:
    """Check experts that are on other ranks than the rest, and so are units of their own."""
    if fsdp.kind == "yafsdp":
        raise InputError(
            'parallelism.fsdp.kind = "yafsdp" needs tp = 1 and ep = 1 with model.experts: its two '
            "buffers hold whole layers, not experts of other ranks; fsdp1 or fsdp2 would do"
        )
    again = fsdp.reshard_after_forward
    if again is not None and not isinstance(again, bool):
        raise InputError(
            f"parallelism.fsdp.reshard_after_forward = {again} is not simulated with ep or tp > 1 "
            "and model.experts, which fewer ranks share; it must be true or false"
        )
    if fsdp.shard and p.tp * fsdp.shard % (p.ep * p.etp):
        raise InputError(
            f"parallelism.ep x etp = {p.ep} x {p.etp} must divide tp x fsdp.shard = "
            f"{p.tp} x {fsdp.shard}, the ranks that hold one copy of all experts"
        )


def _fsdp(fsdp: FsdpTable, dp: int, accumulate: bool) -> None:
    for kind, keys in OWN.items():
        for key in keys if kind != fsdp.kind else ():
            if getattr(fsdp, key) is not None:
                raise InputError(
                    f'parallelism.fsdp.{key} is a key of kind = "{kind}"; '
                    f'leave it out with "{fsdp.kind}"'
                )
    if fsdp.kind == "yafsdp" and accumulate:
        raise InputError(
            "parallelism.accumulate = true needs another kind of fsdp: yafsdp makes gradients in "
            "two buffers, which hold no sums"
        )
    hybrid = "HYBRID" in (fsdp.sharding or "")
    if hybrid and fsdp.shard is None:
        raise InputError(
            f'parallelism.fsdp.sharding = "{fsdp.sharding}" needs shard, the ranks that share a '
            "copy, such as the GPUs of a node"
        )
    if fsdp.kind == "fsdp1" and fsdp.shard is not None and not hybrid:
        raise InputError('parallelism.fsdp.shard needs sharding = "HYBRID_SHARD" in fsdp1')
    group = fsdp.shard or dp
    if dp % group:
        raise InputError(f"parallelism.fsdp.shard = {group} does not divide parallelism.dp = {dp}")
    if group == 1:
        raise InputError("parallelism.fsdp.shard = 1 shares nothing; leave fsdp out")
    if fsdp.replicate and group == dp:
        raise InputError(
            f"parallelism.fsdp.replicate needs shard below dp = {dp}: without copies of the "
            "shards nothing is summed across them"
        )
    if fsdp.replicate == "once" and accumulate:
        raise InputError(
            'parallelism.fsdp.replicate = "once" and accumulate = true are both given: with '
            "accumulate nothing is reduced before the last microbatch; leave one of them out"
        )
    again = fsdp.reshard_after_forward
    if again is not None and not isinstance(again, bool) and (group % again or again == 1):
        raise InputError(
            f"parallelism.fsdp.reshard_after_forward = {again} must be true, false, or above 1 and "
            f"a divisor of the {group} ranks that share a copy"
        )
