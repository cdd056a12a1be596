"""A torchtitan job configuration in the words of a recipe.

Keys and defaults are those of ``torchtitan/config/job_config.py`` (github.com/pytorch/torchtitan,
2025). ``torchtitan_fates.toml`` also has the names of 2024 and 2026, and says what becomes of every
key. Relative paths in the configuration start at its file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.recipe import presets
from sim.recipe.translate import torchtitan_batch, torchtitan_stages
from sim.recipe.translate.torchtitan_keys import Keys

_PRESETS = {("llama3", size): f"llama3-{size.lower()}" for size in ("8B", "70B", "405B")}
_PRESETS |= {("llama2", size): f"llama2-{size.lower()}" for size in ("7B", "70B")}  # until 2024
_DTYPE = {"bfloat16": "bf16", "float32": "fp32"}


def translate(titan: Keys, own: Mapping[str, Any] | None, folder: str) -> dict[str, Any]:
    """Return the tables of a recipe, without [cluster].

    ``own`` is the model that the recipe gives itself, and ``folder`` leads from the recipe to the
    file. Raises InputError, in one sentence, for
    what cannot be expressed or simulated.
    """
    model = _model(titan, own or {})
    layers = (own or {}).get("layers") or _layers(model)
    split = _split(titan) | _data_parallel(titan)
    shards, replicas = titan.replicas()
    training = _training(titan, shards * replicas)
    count = training["global_batch"] // (training["micro_batch"] * shards * replicas)
    if shards * split["cp"] * split["pp"] == 1 and replicas > 1 and count > 1:  # without no_sync
        titan.refuse(
            f"the batch is {count} microbatches per replica, and torchtitan's DDP sums gradients "
            "after each; that is not simulated, raise training.local_batch_size"
        )
    return {
        "model": model,
        "parallelism": split,
        "schedule": torchtitan_stages.schedule(titan, layers, Path(folder)),
        "training": training,
        "simulation": {"host": "compiled" if "model" in _compiled(titan) else "eager"},
    }


def _model(titan: Keys, own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model; its attention is PyTorch's (torchtitan/models/attention.py)."""
    sequence = {"sequence": titan.of(int, "training.seq_len", 2048), "attention": "sdpa"}
    if own.keys() & {"preset", "hf"} or {"layers", "hidden", "heads"} <= own.keys():
        return sequence
    name = titan.of(str, "model.name", "llama3")
    flavor = titan.of(str, "model.flavor", "debugmodel")
    if (name, flavor) not in _PRESETS:
        titan.refuse(
            f"there are no numbers for the model {name} {flavor}; there are "
            f"{', '.join(map(' '.join, _PRESETS))}, or write [model] with a preset, hf or the "
            "numbers"
        )
    return {"preset": _PRESETS[name, flavor], **sequence, **_kernels(titan)}


def _compiled(titan: Keys) -> list[Any]:
    """Return the parts of the model that are compiled."""
    on = titan.of(bool, "compile.enable", default=False)
    parts: list[Any] = titan.of(list, "compile.components", ["model", "loss"]) if on else []
    return parts


def _kernels(titan: Keys) -> dict[str, Any]:
    """Return what the compiler fuses, of a model as in torchtitan/models/llama3/model/model.py.

    Blocks are compiled whole, and since 2025 the loss, unless ``compile.components`` leaves it out.
    Rotary embedding multiplies complex numbers, which the compiler leaves to PyTorch's operators.
    Without it the gate is PyTorch's operators too; nn.RMSNorm is one kernel since PyTorch 2.9
    (aten::_fused_rms_norm).
    """
    parts = _compiled(titan)
    blocks, loss = "model" in parts, "loss" in parts
    chosen = {"rope": "complex", "loss": "fused" if loss else "torch"}
    return {"kernels": chosen, **({} if blocks else {"fused": False})}


def _layers(model: Mapping[str, Any]) -> int | None:
    return presets.preset(model["preset"])["layers"] if "preset" in model else None


def _split(titan: Keys) -> dict[str, Any]:
    return {
        "tp": titan.degree("tensor_parallel_degree"),
        "pp": titan.degree("pipeline_parallel_degree"),
        "cp": titan.degree("context_parallel_degree"),
    }


def _data_parallel(titan: Keys) -> dict[str, Any]:
    """Return the keys of DDP, and the replicas if they do not follow from the GPUs."""
    given = titan.given.get("parallelism.data_parallel_shard_degree", -1)
    dp = {"dp": math.prod(titan.replicas())} if given > 0 else {}
    return {**dp, "zero": 0, "overlap_grad_reduce": True, "bucket_mb": 100 * 2**20 / 1e6}


def _training(titan: Keys, dp: int) -> dict[str, Any]:
    micro, batch = torchtitan_batch.batches(titan, dp)
    adam = {"AdamW": "adam", "Adam": "adam"}
    name = titan.of(str, "optimizer.name", "AdamW")
    out: dict[str, Any] = {
        "micro_batch": micro,
        "global_batch": batch,
        "dtype": titan.choice("training.mixed_precision_param", _DTYPE, "bfloat16"),
        "grad_dtype": titan.choice("training.mixed_precision_reduce", _DTYPE, "float32"),
        "optimizer": adam.get(name, name),
    }
    if titan.choice("training.dtype", _DTYPE, "float32") == "bf16":
        out["optimizer_state"] = _state(titan, out)
    if _foreach(titan) and "optimizer_state" not in out:
        out["foreach"] = True
    return out


def _foreach(titan: Keys) -> bool:
    """Return whether Adam is PyTorch's operators; torchtitan's default is the fused kernel."""
    kinds = {"fused": "fused", "foreach": "foreach", "for-loop": "foreach"}
    said = titan.choice("optimizer.implementation", kinds, "fused") == "foreach"
    fused = titan.of(bool, "optimizer.fused", default=not said)  # until 2025
    return titan.of(bool, "optimizer.foreach", default=False) or not fused


def _state(titan: Keys, training: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of bf16 parameters, gradients and moments, without a master copy."""
    for key, of in (("dtype", "param"), ("grad_dtype", "reduce")):
        if training[key] != "bf16":
            titan.refuse(
                f'training.dtype = "bfloat16" is only simulated with training.mixed_precision_{of} '
                '= "bfloat16"'
            )
    return {"master": "none", "first": "bf16", "second": "bf16"}
