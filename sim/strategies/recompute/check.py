"""Whether a job can save memory as a recipe says, by recomputation, and why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import ModelSection, Recipe
from sim.recipe.sections import RecomputeTable

KEY = "training.recompute"
OP = "op"


def check(recipe: Recipe) -> None:
    """Raise InputError for a table that contradicts itself, or that the job cannot follow."""
    table = recipe.training.recompute
    if isinstance(table, str):
        return
    _layers(table)
    for name in table.modules or ():
        needs = _missing(name, recipe.model)
        if needs:
            raise InputError(f'{KEY}.modules has "{name}", which needs {needs}; leave it out')
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
