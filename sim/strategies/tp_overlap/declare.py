"""Overlap of tensor-parallel collectives with the GEMMs beside them. See ``rewrite.py``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, cast

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.strategies.tensor.declare import sp

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan


class Keys(Section):
    """The keys of [parallelism]."""

    tp_overlap: bool | Literal["copies"] = False
    """whether sp's collectives are cut into chunks that run beside the GEMM that feeds or uses
    them: true as in Transformer Engine, whose reduce-scatters hold SMs; "copies" as in PyTorch's
    async TP, which copies by copy engines and sums afterwards"""
    tp_backward_overlap: bool = True
    """whether tp's collectives of the backward run beside the weight-gradient GEMM"""


KEYS = {"parallelism": Keys}
CATALOGUE = {
    "parallelism.tp_overlap": (
        "tensor-parallel overlap",
        "pieces of a collective run beside pieces of the GEMM next to it; needs sp",
    ),
    "parallelism.tp_backward_overlap": (
        "overlap in the backward",
        "collectives run beside the weight-gradient GEMM",
    ),
}
NEEDS = {"parallelism.tp_overlap": ("parallelism.tp", (1, None))}


def keys(parallelism: object) -> Keys:
    """Return the section as one with these keys."""
    return cast("Keys", parallelism)


def check(recipe: Recipe) -> None:
    """Raise InputError for collectives that cannot be cut."""
    p, said = recipe.parallelism, keys(recipe.parallelism).tp_overlap
    overlap = f"parallelism.tp_overlap = {json.dumps(said)}"
    if p.tp > 1 and said and not sp(p):
        raise InputError(f"{overlap} needs sp = true: it cuts sp's collectives")
    if said and p.etp > 1:
        raise InputError(f"{overlap} is not simulated with etp > 1")


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return whether collectives are cut as in Transformer Engine."""
    if not flags.on("--tp-comm-overlap"):
        return {}
    if not flags.on("--sequence-parallel"):
        flags.refuse("--tp-comm-overlap needs --sequence-parallel")
    tp = flags.whole("--tensor-model-parallel-size") or 1
    return {"parallelism": {"tp_overlap": tp > 1}}


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return whether collectives are cut as in PyTorch's asynchronous tensor parallelism."""
    on = titan.of(bool, "parallelism.enable_async_tensor_parallel", default=False)
    cuts = on and titan.degree("tensor_parallel_degree") > 1
    return {"parallelism": {"tp_overlap": "copies"}} if cuts else {}
