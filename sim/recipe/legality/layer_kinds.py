"""What models whose layers are of several kinds do not go with, in one sentence each."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for a split that a kind of layer does not have."""
    model, p = recipe.model, recipe.parallelism
    if model.qk_norm == "whole" and p.tp > 1:
        raise InputError(
            f'model.qk_norm = "whole" with parallelism.tp = {p.tp} is not simulated: it is a norm '
            "over the heads of all ranks; tp must be 1"
        )
