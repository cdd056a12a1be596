"""Whether the numbers of a model with experts, latent attention or other kernels agree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from schedules.input_error import InputError
from sim.model import kinds

OF_KINDS = ("window", "recurrence", "sinks", "qk_norm", "output_gate")
"""Keys of what mixes tokens, which only some kinds read."""
EXPERT_KEYS = (
    "topk",
    "expert_ffn",
    "shared_experts",
    "dense_layers",
    "capacity_factor",
    "load",
    "shared_gate",
)


def check_latent(given: Mapping[str, Any], heads: int, kv_heads: int) -> None:
    """Raise InputError where a model of latent attention has keys that contradict it."""
    if kv_heads != heads:
        raise InputError(
            f"model.kv_heads = {kv_heads} must be model.heads = {heads} with model.mla, "
            "which gives every head its own keys"
        )
    width = given["mla"]["qk_nope_head_dim"] + given["mla"]["qk_rope_head_dim"]
    if given.get("head_dim", width) != width:
        raise InputError(
            f"model.head_dim = {given['head_dim']} must be qk_nope_head_dim + qk_rope_head_dim = "
            f"{width} with model.mla; leave it out"
        )
    for key, value in (("position", "rope"), ("qkv_bias", False)):
        if key in given and given[key] != value:
            raise InputError(
                f"model.{key} = {json.dumps(given[key])} is not simulated with model.mla; "
                f"it must be {json.dumps(value)}"
            )


def check_experts(given: Mapping[str, Any], experts: int) -> None:
    """Raise InputError where a model's keys of experts contradict each other."""
    topk, layers = given.get("topk"), given["layers"]
    for key in EXPERT_KEYS:
        if key in given and given[key] and not experts:
            raise InputError(f"model.{key} needs model.experts; give it, or leave {key} out")
    if not experts:
        return
    if topk is None:
        raise InputError("model.topk, the experts per token, is missing; model.experts needs it")
    if topk > experts:
        raise InputError(f"model.topk = {topk} is more than model.experts = {experts}")
    if given.get("dense_layers", 0) >= layers:
        raise InputError(
            f"model.dense_layers = {given['dense_layers']} leaves none of model.layers = {layers} "
            "for the experts"
        )
    if given.get("bias") and given.get("shared_experts"):
        raise InputError(
            "model.bias = true is not simulated with model.shared_experts; it must be false"
        )
    if given.get("gated") and "ffn" not in given and "expert_ffn" not in given:
        raise InputError("model.expert_ffn is missing; a gated expert has no default width")
    _check_load(given.get("load") or {}, experts)


def check_pattern(given: Mapping[str, Any]) -> None:
    """Raise InputError for kinds of layers that there are not, or that lack their sizes."""
    lists = {key: given.get(key) or () for key in ("pattern", "feed_forward")}
    if any(lists.values()):
        _check_kinds(lists)
    mixers, then = lists.values()
    if "experts" in then and not given.get("experts"):
        raise InputError('model.feed_forward with "experts" needs model.experts, their number')
    if then and given.get("experts") and "experts" not in then:
        raise InputError('model.experts is given, but model.feed_forward has no "experts"')
    needs = {kind: kinds.kind_of(kind).needs for kind in mixers if kind != "none"}
    for kind, key in needs.items():
        if key and not given.get(key):
            raise InputError(f"model.{key} is missing; {kind} layers need it")
    for key in unused(given):
        raise InputError(f"model.{key} is given, but no layer uses it; leave it out")
    sizes = given.get("recurrence") or {"heads": 1, "groups": 1}
    if sizes["heads"] % sizes["groups"]:
        raise InputError(
            f"model.recurrence.heads = {sizes['heads']} is not a multiple of "
            f"model.recurrence.groups = {sizes['groups']}, each of which serves as many heads"
        )
    if any(a == b == "none" for a, b in product(mixers, then)):
        _both_none(given["layers"], mixers, then or ("dense",))


def unused(given: Mapping[str, Any]) -> list[str]:
    """Return the keys of a model that are given and that no kind of its layers reads."""
    there = [key for key in OF_KINDS if given.get(key)]
    if not there:
        return []
    named = {kind for kind in given.get("pattern") or ("full",) if kind != "none"}
    if given.get("mla") and "full" in named:
        named = named - {"full"} | {"latent"}
    read = {
        key for kind in named for key in (kinds.kind_of(kind).needs, *kinds.kind_of(kind).reads)
    }
    return [key for key in there if key not in read]


def _check_kinds(lists: Mapping[str, Sequence[str]]) -> None:
    for key, named in lists.items():
        for kind in named:
            if kind not in (*kinds.names(key), "none"):
                there = ", ".join(kinds.names(key))
                raise InputError(f"model.{key} has no kind {kind!r}; there are {there} and none")


def _both_none(layers: int, mixers: Sequence[str], then: Sequence[str]) -> None:
    for i in range(layers):
        if mixers[i % len(mixers)] == then[i % len(then)] == "none":
            raise InputError(f"layer {i} is none of model.pattern and none of model.feed_forward")


def check_kernels(full: Mapping[str, Any]) -> None:
    """Raise InputError for a kernel of something that the model does not have."""
    chosen = full.get("kernels") or {}
    needs = {
        "norm": ("eager", full["norm"] == "rms", 'model.norm = "rms"'),
        "rope": ("complex", full["position"] == "rope", 'model.position = "rope"'),
        "experts": ("sequential", bool(full.get("experts")), "model.experts"),
        "permute": ("eager", bool(full.get("experts")), "model.experts"),
    }
    for key, (value, has, what) in needs.items():
        if chosen.get(key) == value and not has:
            raise InputError(f'model.kernels.{key} = "{value}" needs {what}')
    if chosen.get("rope") == "complex" and full.get("mla"):
        raise InputError(
            'model.kernels.rope = "complex" is not simulated with model.mla; leave it out'
        )


def _check_load(load: Mapping[str, Any], experts: int) -> None:
    """Refuse a load that lacks its numbers or has those of another kind."""
    kind = load.get("kind", "balanced")
    needs = {"zipf": "s", "dirichlet": "alpha", "histogram": "counts"}
    for key in needs.values():
        if key in load and needs.get(kind) != key:
            raise InputError(f'model.load.{key} does not belong to kind = "{kind}"; leave it out')
    if kind in needs and needs[kind] not in load:
        raise InputError(f'model.load.{needs[kind]} is missing; kind = "{kind}" needs it')
    counts = load.get("counts")
    if counts is not None and len(counts) != experts:
        raise InputError(
            f"model.load.counts has {len(counts)} entries; there must be one for each of "
            f"model.experts = {experts}"
        )
    if counts is not None and not sum(counts) > 0:
        raise InputError("model.load.counts are all 0; at least one expert must be used")
