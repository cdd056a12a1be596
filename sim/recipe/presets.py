"""The numbers of a preset in the words of a recipe, and what follows from a model's numbers.

It gives only what it states. What follows from that (``head_dim`` from ``hidden`` and ``heads``) is
filled in by :func:`complete`, after the recipe's own numbers have replaced the preset's.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.model import resnet
from sim.recipe.mixtures import check_experts, check_kernels, check_latent, check_pattern

MODELS = Path(__file__).parent / "models"


def names() -> list[str]:
    """List the names of the presets.

    >>> "gpt3-175b" in names()
    True
    """
    return sorted(file.stem for file in MODELS.glob("*.toml"))


def preset(name: str, instead: str = "") -> dict[str, Any]:
    """Return the numbers of a preset, without its source.

    Raises InputError, with the nearest name, when there is no preset of that name; the message ends
    with what would do ``instead``.
    """
    if name not in names():
        near = difflib.get_close_matches(name.lower(), names(), 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        there = f"{', '.join(names())}{'; ' * bool(instead)}{instead}"
        raise InputError(f"no model preset {name!r}; {hint} are {there}")
    numbers = tomllib.loads((MODELS / f"{name}.toml").read_text())
    numbers.pop("source")
    return {"name": name, **numbers}


def complete(given: Mapping[str, Any], attention: str = "flash") -> dict[str, Any]:
    """Return all numbers of a model: those that are given and those that follow from them.

    ``attention`` is the kernel unless it is given. Raises InputError for a missing number, or
    numbers that contradict each other.

    >>> full = complete({"layers": 2, "hidden": 8, "heads": 2, "vocab": 99, "sequence": 16})
    >>> full["head_dim"], full["ffn"], full["positions"]
    (4, 32, 16)
    """
    if given.get("blocks"):
        return resnet.complete(given)
    resnet.refuse_without_blocks(given)
    missing = [
        key for key in ("layers", "hidden", "heads", "vocab", "sequence") if key not in given
    ]
    if missing:
        raise InputError(
            f"model.{missing[0]} is missing; give it, or a preset, or hf = 'path/config.json'"
        )
    hidden, heads = given["hidden"], given["heads"]
    kv_heads = given.get("kv_heads", heads)
    gated = given.get("gated", given.get("activation") == "silu")
    usual = "rope" if given.get("mla") else "learned" if given["vocab"] else "none"
    position = given.get("position", usual)
    plain = given.get("experts") or given.get("mla")
    bias = given.get("bias", given.get("norm", "layer") == "layer" and not plain)
    mla, experts = given.get("mla"), given.get("experts", 0)
    if "head_dim" not in given and not mla and hidden % heads:
        raise InputError(f"model.hidden = {hidden} is not a multiple of model.heads = {heads}")
    if heads % kv_heads:
        raise InputError(f"model.heads = {heads} is not a multiple of model.kv_heads = {kv_heads}")
    if mla:
        check_latent(given, heads, kv_heads)
    check_experts({**given, "gated": gated}, experts)
    check_pattern(given)
    dense = given.get("dense_layers") or "dense" in given.get("feed_forward", ())
    if gated and "ffn" not in given and (not experts or dense):
        raise InputError("model.ffn is missing; a gated MLP has no default width")
    follows = {
        "name": "model",
        "kv_heads": kv_heads,
        "head_dim": mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"] if mla else hidden // heads,
        "ffn": given.get("expert_ffn", 4 * hidden) if experts else 4 * hidden,
        "gated": gated,
        "tied": True,
        "norm": "layer",
        "attention": attention,
        "activation": "silu" if gated else "gelu",
        "qkv_bias": bias and not mla,
        "bias": bias,
        "position": position,
        "positions": given["sequence"] if position == "learned" else 0,
        "dropout": 0.0,
        "vocab_padding": 128,
    }
    full = {**follows, **given}
    if experts:
        own = {"expert_ffn": full["ffn"], "shared_experts": 0, "dense_layers": 0}
        full = {**own, "load": {"kind": "balanced"}, **full}
    check_kernels(full)
    if position == "learned" and full["positions"] < given["sequence"]:
        raise InputError(
            f"model.sequence = {given['sequence']} is longer than the "
            f"{full['positions']} positions that the model has learned"
        )
    return full
