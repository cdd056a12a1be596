"""What models whose layers are of several kinds do not go with, in one sentence each."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe
from sim.recipe.sections import RecomputeTable


def check(recipe: Recipe) -> None:
    """Raise InputError for a split or a recomputation that a kind of layer does not have."""
    model, p = recipe.model, recipe.parallelism
    if model.qk_norm == "whole" and p.tp > 1:
        raise InputError(
            f'model.qk_norm = "whole" with parallelism.tp = {p.tp} is not simulated: it is a norm '
            "over the heads of all ranks; tp must be 1"
        )
    if isinstance(recipe.training.recompute, RecomputeTable):
        _modules(recipe, recipe.training.recompute)


def _modules(recipe: Recipe, table: RecomputeTable) -> None:
    """Check modules, which are found by the norms of a layer of attention and an MLP."""
    model = recipe.model
    for name in table.modules or ():
        if name != "core_attn" and model.norm_place not in (None, "before"):
            raise InputError(
                f'training.recompute.modules has "{name}", which is not simulated with '
                f'model.norm_place = "{model.norm_place}"; core_attn, or full, would do'
            )
        if name in ("op", "norm", "layernorm") and (model.pattern or model.feed_forward):
            raise InputError(
                f'training.recompute.modules has "{name}", which is not simulated with '
                "model.pattern or model.feed_forward; core_attn, or full, would do"
            )
