"""The batch and number formats in Megatron-LM's arguments.

See :mod:`sim.recipe.translate.megatron`.
"""

from __future__ import annotations

from typing import Any

from sim.recipe.translate.flags import Flags

_STATE = {
    "master": ("--main-params-dtype", ("fp32", "fp16")),
    "first": ("--exp-avg-dtype", ("fp32", "fp16", "bf16", "fp8")),
    "second": ("--exp-avg-sq-dtype", ("fp32", "fp16", "bf16", "fp8")),
}
"""Flags of the precision-aware optimizer by a recipe's keys, and their possible values."""


def training(flags: Flags) -> dict[str, Any]:
    """Return the section [training].

    Raises InputError for flags that are missing or cannot be expressed.
    """
    flags.one_of("--bf16", "--fp16")
    out: dict[str, Any] = {
        "micro_batch": flags.needed("--micro-batch-size"),
        "dtype": "bf16" if flags.on("--bf16") else "fp16" if flags.on("--fp16") else "fp32",
        "grad_dtype": _gradients(flags),
    }
    if batch := flags.whole("--global-batch-size"):
        out["global_batch"] = batch
    if optimizer := flags.text("--optimizer"):
        out["optimizer"] = optimizer if optimizer != "sgd" else "sgd with momentum"
    if flags.number("--clip-grad") == 0:
        out["clip"] = False
    elif flags.on("--enable-optimizer-post-validation"):
        out["clip"] = "post"
    if state := _state(flags):
        out["optimizer_state"] = state
    if _adds_gradients(flags):
        out["weight_gradients"] = "cached"
    return out


def _state(flags: Flags) -> dict[str, str]:
    """Return the number formats of Adam's state where Transformer Engine keeps others than fp32.

    It keeps only those bits of an fp32 master copy that bf16 weights lack
    (``store_param_remainders``). State that the host updates stays fp32.
    """
    said = {
        key: flags.choice(flag, {kind: kind for kind in kinds}, "fp32")
        for key, (flag, kinds) in _STATE.items()
    }
    aware, host = flags.on("--use-precision-aware-optimizer"), flags.on("--optimizer-cpu-offload")
    if not aware:
        for key in (key for key, kind in said.items() if kind != "fp32"):
            flags.refuse(f"{_STATE[key][0]} = {said[key]} needs --use-precision-aware-optimizer")
        return {}
    if not flags.on("--use-distributed-optimizer"):
        flags.refuse("--use-precision-aware-optimizer needs --use-distributed-optimizer")
    if host and set(said.values()) == {"fp32"}:
        return {}
    whole = host or flags.on("--fp8-param-gather") or not flags.on("--bf16")
    return said if whole or said["master"] != "fp32" else {**said, "master": "remainder"}


def _adds_gradients(flags: Flags) -> bool:
    """Return whether Transformer Engine's GEMMs add to main gradients, as is the default."""
    own = flags.text("--transformer-impl") in (None, "transformer_engine")
    return own and not flags.on("--no-gradient-accumulation-fusion")


def _gradients(flags: Flags) -> str:
    """Return the type in which gradients are summed and reduced, by default fp32."""
    flags.one_of("--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16")
    main = flags.choice("--main-grads-dtype", {"fp32": "fp32", "bf16": "bf16"}, "fp32")
    if flags.on("--accumulate-allreduce-grads-in-fp32"):
        return "fp32"
    if flags.on("--fp16"):
        return "fp16"
    return "bf16" if flags.on("--bf16") and flags.on("--grad-reduce-in-bf16") else main
