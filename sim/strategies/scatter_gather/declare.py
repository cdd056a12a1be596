"""Scatter-gather: ranks of tp send parts of the pipeline's messages. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.strategies.tensor.declare import sp

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe


class Keys(Section):
    """The key of [parallelism]."""

    scatter_gather: bool = False
    """whether each tp rank sends 1/tp of a message, gathered inside the receiving node; only
    without sp"""


AFTER = ("tensor",)
KEYS = {"parallelism": Keys}
CATALOGUE = {
    "parallelism.scatter_gather": (
        "scatter-gather",
        "each tensor-parallel GPU sends its part to the next stage, which gathers them",
    ),
}


def scatters(parallelism: object) -> bool:
    """Return whether each rank of tp sends a part of a message."""
    return cast("Keys", parallelism).scatter_gather


def check(recipe: Recipe) -> None:
    """Raise InputError for messages that sequence parallelism has split already."""
    if sp(recipe.parallelism) and scatters(recipe.parallelism):
        raise InputError(
            "parallelism.scatter_gather = true needs sp = false: with sp the activations that "
            "are sent are split over tp already"
        )
