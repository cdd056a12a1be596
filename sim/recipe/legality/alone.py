"""What a model of layers without a vocabulary cannot have."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for what needs an embedding, a head or a loss where there is none."""
    model = recipe.model
    if model.vocab != 0:
        return
    what = "model.vocab = 0 leaves only the layers, without embedding, head and loss"
    if model.position == "learned":
        raise InputError(f'{what}, so model.position must be "rope" or "none"')
