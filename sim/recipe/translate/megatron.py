"""Megatron-LM's arguments in the words of a recipe.

Meanings and defaults are those of ``megatron/training/arguments.py`` (2025;
github.com/NVIDIA/Megatron-LM), unless another source is given. ``megatron_fates.toml`` says what
becomes of every flag.
"""

from __future__ import annotations

from typing import Any

from sim.recipe.translate import megatron_model, megatron_stages, megatron_training
from sim.recipe.translate.flags import Flags


def translate(
    flags: Flags, gpus: int | None, *, model: bool, sized: bool = False
) -> dict[str, Any]:
    """Return the tables of a recipe, without [cluster].

    Without ``model`` the only key of the model is its sequence; ``sized`` says that the recipe
    has a vocabulary. The defaults of --global-batch-size and --ddp-bucket-size follow from
    ``gpus``. Raises InputError, in one sentence, for flags that contradict each other, are missing
    or cannot be expressed.
    """
    training = megatron_training.training(flags)
    split = {**_sizes(flags), **_data_parallel(flags), **_overlap(flags)}
    replicas = (gpus or 0) // (split["tp"] * split["pp"] * split["cp"])
    if replicas:
        training.setdefault("global_batch", training["micro_batch"] * replicas)
        bytes_each = {"fp32": 4, "bf16": 2, "fp16": 2}[training["grad_dtype"]]
        split["bucket_mb"] = _bucket(flags, replicas * split["cp"]) * bytes_each / 1e6
    sections: dict[str, Any] = {
        "model": megatron_model.model(flags, sized=sized)
        if model
        else megatron_model.sequence(flags),
        "parallelism": split,
        "schedule": megatron_stages.schedule(flags),
    }
    return {**sections, "training": training, "simulation": {"host": _host(flags)}}


def _host(flags: Flags) -> str:
    """Return how the host issues kernels: by CUDA graphs (of layers, at least), or by Python."""
    kinds = {"none": "megatron", "local": "graphs", "transformer_engine": "graphs"}
    impl = flags.choice("--cuda-graph-impl", kinds | {"full_iteration": "graphs"}, "megatron")
    on = flags.on("--enable-cuda-graph", "--external-cuda-graph")  # until 2026
    return "graphs" if on else impl


def left_out(flags: Flags) -> dict[str, str]:
    """Return flags that are understood but whose value has no key, with what they are about."""
    return {**megatron_model.left_out(flags), **megatron_stages.left_out(flags)}


def _sizes(flags: Flags) -> dict[str, Any]:
    return {
        "tp": flags.whole("--tensor-model-parallel-size") or 1,
        "pp": flags.whole("--pipeline-model-parallel-size") or 1,
        "cp": flags.whole("--context-parallel-size") or 1,
        "order": "tp-cp-ep-pp-dp" if flags.on("--use-tp-pp-dp-mapping") else "tp-cp-ep-dp-pp",
    }


def _data_parallel(flags: Flags) -> dict[str, Any]:
    instances = flags.whole("--num-distributed-optimizer-instances") or 1
    zero = {"zero": int(flags.on("--use-distributed-optimizer"))}
    return zero | ({"optimizer_instances": instances} if instances > 1 else {})


def _overlap(flags: Flags) -> dict[str, Any]:
    gather, reduce = flags.on("--overlap-param-gather"), flags.on("--overlap-grad-reduce")
    if gather and not reduce:
        flags.refuse("--overlap-param-gather needs --overlap-grad-reduce")
    # overlapped messages are isend and irecv, a stream per pair of ranks; others are batched
    return {
        "overlap_grad_reduce": reduce,
        "overlap_param_gather": gather,
        "p2p": "pair" if megatron_stages.overlaps_p2p(flags) else "batched",
    }


def _bucket(flags: Flags, replicas: int) -> int:
    """Return the parameters in one bucket: max(40e6, 1e6 dp) unless given (core/distributed)."""
    return flags.whole("--ddp-bucket-size") or max(40_000_000, 1_000_000 * replicas)
