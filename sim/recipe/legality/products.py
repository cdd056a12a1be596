"""Whether matrices may be multiplied in these numbers; each check says in one sentence why not."""

from __future__ import annotations

from collections.abc import Mapping

from schedules.input_error import InputError
from sim import strategies
from sim.recipe.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for a number format of products that does not go with that of storage."""
    training = recipe.training
    if training.matmul and training.dtype != "fp32":
        raise InputError(
            f'training.matmul = "{training.matmul}" is for products of training.dtype = "fp32", '
            f'not "{training.dtype}"; leave it out'
        )


def dtypes(recipe: Recipe) -> dict[str, str]:
    """Return the number formats of products that are not those of storage, by key."""
    own: dict[str, str] = (
        {"training.matmul": recipe.training.matmul} if recipe.training.matmul else {}
    )
    for found in strategies.declared("dtypes"):
        own |= found(recipe)
    return own


def able(recipe: Recipe, topology: str, peak: Mapping[str, float]) -> None:
    """Raise InputError for a GPU that lacks a number format of the recipe's products."""
    for key, dtype in dtypes(recipe).items():
        if dtype not in peak:
            raise InputError(
                f"{key} needs a GPU with {'an' if dtype == 'fp8' else 'a'} {dtype} peak, which "
                f"topology {topology!r} does not have; leave it out, or choose another, such as "
                "dgx_h100"
            )
