"""Parameters and gradients that replicas share: ZeRO-2 and 3, FSDP. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.strategies.sharded.legality import check as check
from sim.strategies.sharded.tables import Keys, own
from sim.strategies.sharded.tables import asked as asked

if TYPE_CHECKING:
    from sim.recipe.recipe import ParallelismSection, Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan

KEYS = {"parallelism": Keys}
CATALOGUE = {
    "parallelism.deepspeed": ("DeepSpeed's sizes", "those of ZeRO's buckets, prefetch and reuse"),
    "parallelism.fsdp": (
        "fully sharded data parallel",
        "parameters are gathered unit by unit: FSDP1, FSDP2, HSDP (shard) and YaFSDP",
    ),
    "parallelism.accumulate": (
        "no_sync",
        "gradients stay whole until the last microbatch, as fsdp2 keeps them in a pipeline",
    ),
}
TRIED = {"parallelism.fsdp": (None, {"kind": "fsdp2"})}
EITHER = (("zero", "fsdp"), ("fsdp", "zero"))
STAGES = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}


def complete(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return whether gradients wait for the last microbatch, as with FSDP2 in torch's pipeline.

    It turns off the synchronisation of FSDP2 (and DDP) in all backwards but the last
    (backward_maybe_with_nosync in torch/distributed/pipelining/stage.py, 2.13). FSDP1, which it
    does not handle, and other kinds reduce in every backward.
    """
    said = own(recipe.parallelism)
    waits = said.accumulate
    if waits is None:
        torch = said.fsdp is not None and said.fsdp.kind == "fsdp2"
        once = said.fsdp is not None and said.fsdp.replicate == "once"  # which reduces shards
        waits = torch and not once and recipe.parallelism.pp > 1
    return {"parallelism": {"accumulate": waits}}


def native(p: ParallelismSection) -> bool:
    """Return whether PyTorch runs the model, as FSDP is PyTorch's."""
    return own(p).fsdp is not None


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return the keys of FSDP, which adds no gradients to main gradients."""
    flags.one_of("--use-torch-fsdp2", "--use-distributed-optimizer")
    flags.one_of("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp")
    torch = flags.on("--use-torch-fsdp2")
    if not torch and not flags.on("--use-megatron-fsdp", "--use-custom-fsdp"):
        return {}
    if (flags.whole("--num-distributed-optimizer-instances") or 1) > 1:
        flags.refuse(
            "--num-distributed-optimizer-instances is not translated with FSDP; write fsdp"
        )
    if torch and (flags.whole("--pipeline-model-parallel-size") or 1) > 1:
        flags.refuse("--use-torch-fsdp2 does not go with --pipeline-model-parallel-size above 1")
    split = _torch(flags) if torch else {"zero": _stage(flags)}
    return {"parallelism": split, "training": {"weight_gradients": "passing"}}


def _torch(flags: Flags) -> dict[str, Any]:
    reshard = not flags.on("--torch-fsdp2-no-reshard-after-forward")
    plain = {"zero": 0, "overlap_grad_reduce": True, "overlap_param_gather": False}
    return {**plain, "fsdp": {"kind": "fsdp2", "reshard_after_forward": reshard}}


def _stage(flags: Flags) -> int:
    """Return the stage of ZeRO that Megatron-FSDP shards by."""
    usual = "3" if flags.on("--use-megatron-fsdp") else "0"  # 0 until April 2026
    stage = int(flags.choice("--data-parallel-sharding-strategy", STAGES, usual))
    return max(stage, int(flags.on("--use-distributed-optimizer")))


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return the keys of FSDP2, or HSDP with replicas, where several ranks share a copy."""
    shards, replicas = titan.replicas()
    copy = shards * titan.degree("context_parallel_degree")  # ranks of one sequence share a copy
    if copy == 1:
        return {}
    policy = titan.choice(
        "parallelism.fsdp_reshard_after_forward",
        {"default": "default", "always": "always", "never": "never"},
        "default",
    )
    alone = titan.degree("pipeline_parallel_degree") == 1
    reshard = policy == "always" or (policy == "default" and alone)
    fsdp = {"kind": "fsdp2", "reshard_after_forward": reshard}
    return {"parallelism": {"fsdp": {**fsdp, "shard": copy} if replicas > 1 else fsdp}}
