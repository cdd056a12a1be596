"""Knows which of torch's operators are which of our kernels, and how much work each does.

Work is FLOPs for matrix products and attention, and bytes for everything else, both as our kernels
count them. Torch operators that no kernel of ours stands for, such as copies that only change a
layout, are ``rest`` and go with the matrix products.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from schedules.input_error import InputError
from sim.graph import Compute
from traces.cpu_steps import Leaf

GROUPS = (
    "gemm", "attention", "attention_backward", "norm", "norm_backward", "activation",
    "activation_backward", "add", "sum", "bucket_copy", "shard_copy", "optimizer",
)  # fmt: skip
REST = "rest"
FREE = re.compile(r"(qkv|fc1|fc2|projection)_bias$|^zero_grads$")
"""Kernels that no operator runs: addmm adds biases, and gradients are dropped, not zeroed."""
_OURS = (
    (re.compile(r"_bias_grad$"), "sum"),
    (re.compile(r"^gelu_backward$"), "activation_backward"),
    (re.compile(r"^gelu$"), "activation"),
    (re.compile(r"_(residual|grad_add)$"), "add"),
    (re.compile(r"^(grad_scale|grad_copy_back)$"), "bucket_copy"),
    (re.compile(r"^(param_copy_\w+|grad_copy_in)$"), "shard_copy"),
    (re.compile(r"^(sgd|adam)$"), "optimizer"),
    (re.compile(r"_norm_backward$"), "norm_backward"),
)
_TORCH = (
    (re.compile(r"::(addmm|mm|bmm|baddbmm)$"), "gemm"),
    (re.compile(r"::_scaled_dot_product_\w+_backward$"), "attention_backward"),
    (re.compile(r"::_scaled_dot_product_\w+$"), "attention"),
    (re.compile(r"::native_layer_norm_backward$"), "norm_backward"),
    (re.compile(r"::native_layer_norm$"), "norm"),
    (re.compile(r"::gelu_backward$"), "activation_backward"),
    (re.compile(r"::gelu$"), "activation"),
    (re.compile(r"::sum$"), "sum"),
)
_COPIES = re.compile(r"::(copy_|mul|mul_|div|div_|cat|add_|_foreach_copy_|_chunk_cat|chunk_cat)$")


def of_kernel(name: str, work: Compute) -> str:
    """Return the group of a kernel of ours, "" for one that takes nothing."""
    if FREE.search(name):
        return ""
    for pattern, group in _OURS:
        if pattern.search(name):
            return group
    if work.kind in GROUPS:
        return work.kind
    raise InputError(f"no operator of torch is known for the kernel {name} ({work.kind})")


def amount(group: str, work: Compute) -> float:
    """Return the FLOPs or bytes of a kernel."""
    return work.flops if group in ("gemm", "attention", "attention_backward") else work.bytes


def of_leaf(leaf: Leaf, config: Mapping[str, Any], mode: str) -> str:
    """Return the group of an operator of torch in a recording of that mode."""
    if leaf.inside == "optimizer":
        return "optimizer"
    for pattern, group in _TORCH:
        if pattern.search(leaf.name):
            return group
    tokens, width = config["mb"] * config["seq"], config["d"]
    shape = leaf.shapes[0] if leaf.shapes else ()
    residual = len(shape) > 1 and prod(shape) == tokens * width and shape[-1] == width
    if residual and leaf.name in ("aten::add", "aten::add_"):
        return "add"
    held = len(shape) == 1 or (len(shape) == 2 and shape[0] != tokens)
    if held and prod(shape) > 1 and _COPIES.search(leaf.name):
        return "shard_copy" if mode == "fsdp2" else "bucket_copy"
    return REST
