"""Recomputation in the words of Megatron-LM and torchtitan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.keys.refusals import brief

if TYPE_CHECKING:
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan

MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
)
"""The names that --recompute-modules may have (transformer_config.py)."""


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return what Megatron-LM runs again."""
    return {"training": {"recompute": _granularity(flags)}}


def _granularity(flags: Flags) -> str | dict[str, Any]:
    from sim.recipe.translate.megatron_stages import most_layers  # few recipes name Megatron-LM

    kinds = {"selective": "selective", "full": "full"}
    kind = flags.choice("--recompute-granularity", kinds, "none")
    if flags.on("--recompute-activations", "--moe-layer-recompute"):
        kind = "selective"
    modules = list(flags.given.get("--recompute-modules", ()))
    if flags.on("--moe-layer-recompute") and "moe" not in modules:
        modules = [*(modules or ["core_attn"]), "moe"]
    if kind == "selective":
        return kind if modules in ([], ["core_attn"]) else {"modules": _modules(flags, modules)}
    method, layers = flags.text("--recompute-method"), flags.whole("--recompute-num-layers") or 1
    if kind == "full" and method == "block" and layers < most_layers(flags):
        return {"method": "block", "layers": layers}  # this many layers at each stage's start
    if kind == "full" and method == "uniform" and layers > 1:
        return {"method": "uniform", "layers": layers}  # one input is kept for this many layers
    return kind


def _modules(flags: Flags, modules: list[str]) -> list[str]:
    """Return Megatron's names; without Transformer Engine every norm is a module of its own."""
    for name in modules:
        if name not in MODULES:
            flags.refuse(f"--recompute-modules has {brief(name)}; there are {', '.join(MODULES)}")
    local = flags.text("--transformer-impl") == "local"
    return ["norm" if local and name == "layernorm" else name for name in modules]


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return what torchtitan runs again."""
    return {"training": {"recompute": _mode(titan)}}


def _mode(titan: Titan) -> str | dict[str, Any]:
    """Return a word; every n-th layer or the operator list is a table."""
    modes = {"none": "none", "full": "full", "selective": "selective"}
    mode = titan.choice("activation_checkpoint.mode", modes, "selective")
    if mode != "selective":
        return mode
    option = str(titan.given.get("activation_checkpoint.selective_ac_option", "2"))
    if option == "op":
        return {"modules": ["op"]}
    if not option.isdecimal() or not 1 <= int(option) < 1000:
        titan.refuse(
            f"activation_checkpoint.selective_ac_option = {brief(option)} must be a number or op"
        )
    return "full" if option == "1" else {"every": int(option)}
