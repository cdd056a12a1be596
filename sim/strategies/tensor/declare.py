"""Tensor parallelism, and sequence parallelism inside its groups. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from schedules.input_error import InputError
from sim.keys.section import Section

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan


class Keys(Section):
    """The key of [parallelism] besides the degree, which is an axis of every job."""

    sp: bool = False
    """Megatron's sequence parallelism, which also splits activations between the linears over tp;
    an override of tp = 1 turns it off"""


KEYS = {"parallelism": Keys}
TRIED = {"parallelism.sp": (False, True)}
NEEDS = {"parallelism.sp": ("parallelism.tp", (1, None))}
CATALOGUE = {
    "parallelism.tp": ("tensor parallel", "this many GPUs share the matrices of each layer"),
    "parallelism.sp": (
        "sequence parallel",
        "the tensor-parallel GPUs split activations along the sequence too (Megatron)",
    ),
}


def sp(parallelism: object) -> bool:
    """Return whether the ranks of tp share the sequence too."""
    return cast("Keys", parallelism).sp


def check(recipe: Recipe) -> None:
    """Raise InputError for sizes that cannot be split over tp, and for sp without tp."""
    model, p = recipe.model, recipe.parallelism
    if sp(p) and p.tp == 1:
        raise InputError(
            "parallelism.sp = true needs tp > 1, whose ranks share the sequence; with tp = 1 it "
            "must be false"
        )
    split = {"heads": model.heads, "ffn": model.ffn}
    if (model.kv_heads or 1) > p.tp or p.tp % (model.kv_heads or 1):
        split["kv_heads"] = model.kv_heads  # if tp is a multiple of them, they are replicated
    if sp(p):
        split["sequence"] = model.sequence
    for name, size in split.items():
        if (size or 0) % p.tp:
            raise InputError(
                f"model.{name} = {size} cannot be split over parallelism.tp = {p.tp}; "
                f"tp must divide it{', or be a multiple of it' if name == 'kv_heads' else ''}"
            )


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return whether the sequence is shared; Megatron-LM switches that off if tp is 1."""
    tp = flags.whole("--tensor-model-parallel-size") or 1
    return {"parallelism": {"sp": tp > 1 and flags.on("--sequence-parallel")}}


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return whether the sequence is shared."""
    on = titan.of(bool, "parallelism.enable_sequence_parallel", default=True)
    return {"parallelism": {"sp": on and titan.degree("tensor_parallel_degree") > 1}}
