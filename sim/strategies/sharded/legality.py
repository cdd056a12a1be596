"""Whether replicas can share parameters and gradients as a recipe says, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import ParallelismSection, Recipe
from sim.recipe.sections import OWN, FsdpTable


def check(recipe: Recipe) -> None:
    """Raise InputError for what ZeRO-2, ZeRO-3 and FSDP cannot do, or not together."""
    p = recipe.parallelism
    _options(recipe)
    if p.optimizer_instances > 1:
        _instances(recipe)
    if p.fsdp and p.zero:
        raise InputError(
            f"parallelism.zero = {p.zero} and parallelism.fsdp are both given; "
            "leave one of them out"
        )
    if not p.fsdp and p.zero < 2:
        return
    what = "parallelism.fsdp" if p.fsdp else f"parallelism.zero = {p.zero}"
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
    if p.fsdp:
        _fsdp(p.fsdp, (p.dp or 1) * p.cp, bool(p.accumulate))
    if p.fsdp and recipe.model.experts and p.tp * p.ep * p.etp > 1:
        _experts(p, p.fsdp)


def _options(recipe: Recipe) -> None:
    p = recipe.parallelism
    plain = not p.fsdp and p.zero < 2
    if p.deepspeed and (p.fsdp or p.zero < 2):
        raise InputError(
            "parallelism.deepspeed gives sizes for zero = 2 or 3; it needs one of them"
        )
    for key in ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance"):
        given = p.deepspeed and f"stage3_{key}" in p.deepspeed.model_fields_set
        if given and p.zero < 3:
            raise InputError(
                f"parallelism.deepspeed.stage3_{key} needs zero = 3, which gathers parameters"
            )
    if p.accumulate and plain:
        raise InputError(
            "parallelism.accumulate = true needs zero = 2 or 3, or fsdp: "
            "without them gradients are reduced on the last microbatch only"
        )
    if p.first_bucket_mb and not plain:
        raise InputError("parallelism.first_bucket_mb needs zero = 0 or 1, without fsdp")
    if not p.gradient_as_bucket_view and (p.zero > 1 or p.fsdp):
        raise InputError(
            "parallelism.gradient_as_bucket_view = false needs zero = 0 or 1, without fsdp: "
            "the copies are DDP's"
        )
    if p.overlap_param_gather and p.zero not in (1, 2):
        raise InputError(
            "parallelism.overlap_param_gather = true needs zero = 1 or 2, whose gathers it overlaps"
        )


def _instances(recipe: Recipe) -> None:
    """Check groups of replicas that each have a whole optimizer state."""
    p = recipe.parallelism
    n, replicas = p.optimizer_instances, (p.dp or 1) * p.cp
    what = f"parallelism.optimizer_instances = {n}"
    if p.zero != 1:
        raise InputError(f"{what} needs zero = 1: each instance splits the optimizer state")
    if replicas % n or replicas == n:
        raise InputError(
            f"{what} must divide dp x cp = {replicas} into runs of two or more, which split the "
            "state; for runs of one rank zero = 0 would do"
        )
    if not recipe.model.experts or p.tp * p.ep * p.etp == 1:
        return
    holders = replicas * p.tp // (p.ep * p.etp)
    if holders % n:
        raise InputError(f"{what} must divide the {holders} ranks that hold the same experts")
    if not p.order.endswith("dp-pp"):
        raise InputError(f'{what} with experts needs parallelism.order to end with "dp-pp"')


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
