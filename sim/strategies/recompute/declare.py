"""Recomputation: what of a layer runs again in the backward. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field

from schedules.input_error import InputError
from sim.keys.refusals import show
from sim.keys.section import Section
from sim.strategies.recompute import words

if TYPE_CHECKING:
    from sim.recipe.recipe import ModelSection, Recipe

AFTER = ("mtp",)
KEY = "training.recompute"
OP = "op"
"""The only module that cannot be combined with others: torchtitan's policy, which saves outputs
operator by operator."""
Module = Literal[
    "core_attn",
    "layernorm",
    "norm",
    "mla_up_proj",
    "mlp",
    "mlp_act",
    "moe",
    "moe_act",
    "shared_experts",
]
"""Modules of a layer that can run again alone; see ``plans.py``."""


class RecomputeTable(Section):
    """What runs again in the backward, whole layers or modules of them, and in which layers."""

    modules: (
        Annotated[
            tuple[Literal[Module, "op"], ...],
            Field(strict=False, max_length=16),
        ]
        | None
    ) = None
    """modules that run again, by Megatron-Core's names, or ["op"] for torchtitan's policy; default:
    whole layers"""
    every: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """recompute only every n-th layer of a stage; this is n"""
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """recompute only in this share of a stage's layers, evenly spread"""
    method: Literal["uniform", "block"] | None = None
    """uniform: each run of layers runs again from its input; block: only a stage's first layers run
    again"""
    layers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """with method: number of layers in a run (uniform), or from a stage's start (block)"""


class Keys(Section):
    """The key of [training]."""

    recompute: Literal["none", "selective", "full"] | RecomputeTable = "none"
    """what the backward runs again: none, selective (the attention core), full (every layer from
    its input) or a table"""


KEYS = {"training": Keys}
CATALOGUE = {
    "training.recompute": (
        "recomputation",
        "the backward rebuilds the attention core, modules, or whole layers, in all or some layers",
    ),
}
TRIED = {"training.recompute": ("none", "selective", "full")}
LISTS = {"training.recompute.modules": '["mlp"]'}
WORDS = {
    "none": RecomputeTable(modules=()),
    "selective": RecomputeTable(modules=("core_attn",)),
    "full": RecomputeTable(),
}
"""The tables that words stand for. Selective is that of Korthikanti et al. 2022, section 5."""
megatron, torchtitan = words.megatron, words.torchtitan


def rule(training: object) -> RecomputeTable:
    """Return the key as a table."""
    said = cast("Keys", training).recompute
    return WORDS[said] if isinstance(said, str) else said


def check(recipe: Recipe) -> None:
    """Raise InputError for a table that contradicts itself, or that the job cannot follow."""
    table = rule(recipe.training)
    if recipe.model.blocks and cast("Keys", recipe.training).recompute != "none":
        said = show(recipe.training.model_dump(exclude_none=True)["recompute"])
        raise InputError(f'{KEY} = {said} is not simulated with model.blocks; it must be "none"')
    _layers(table)
    for name in table.modules or ():
        needs = _missing(name, recipe.model)
        if needs:
            raise InputError(f'{KEY}.modules has "{name}", which needs {needs}; leave it out')
        _found(name, recipe.model)
    if OP in (table.modules or ()):
        _per_operator(recipe, table)


def _layers(table: RecomputeTable) -> None:
    ways = [key for key in ("every", "fraction", "method") if getattr(table, key) is not None]
    if len(ways) > 1:
        raise InputError(f"{KEY}.{ways[0]} and {KEY}.{ways[1]} both choose layers; leave one out")
    if table.method is not None and table.modules is not None:
        raise InputError(f"{KEY}.method is for whole layers; leave {KEY}.modules out, or use every")
    if table.method == "block" and table.layers is None:
        raise InputError(f'{KEY}.method = "block" needs layers, how many of each stage')
    if table.layers is not None and table.method is None:
        raise InputError(f'{KEY}.layers needs method = "uniform" or "block", or use every')


def _missing(name: str, model: ModelSection) -> str:
    """Return what a model without such a module lacks."""
    if name in ("moe", "moe_act") and not model.experts:
        return "model.experts"
    if name == "shared_experts" and not model.shared_experts:
        return "model.shared_experts"
    return "model.mla" if name == "mla_up_proj" and not model.mla else ""


def _found(name: str, model: ModelSection) -> None:
    """Check a module that is found by the norms of a layer of attention and an MLP."""
    without = ""
    if name != "core_attn" and model.norm_place not in (None, "before"):
        without = f'model.norm_place = "{model.norm_place}"'
    elif name in ("op", "norm", "layernorm") and (model.pattern or model.feed_forward):
        without = "model.pattern or model.feed_forward"
    if without:
        raise InputError(
            f'{KEY}.modules has "{name}", which is not simulated with {without}; core_attn, or '
            "full, would do"
        )


def _per_operator(recipe: Recipe, table: RecomputeTable) -> None:
    what, model = f'{KEY}.modules = ["{OP}"]', recipe.model
    if len(table.modules or ()) > 1:
        raise InputError(f"{what} already decides for every operator; leave the other modules out")
    reasons = {
        "model.experts": model.experts,
        "model.mla": model.mla,
        "model.bias or model.qkv_bias": model.bias or model.qkv_bias,
        'model.attention = "unfused"': model.attention == "unfused",
        "parallelism.cp": recipe.parallelism.cp > 1,
    }
    for name, given in reasons.items():
        if given:
            raise InputError(f"{what} is not simulated with {name}; use every, or full")
