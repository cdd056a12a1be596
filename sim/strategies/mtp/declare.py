"""Multi-token prediction: depths after the last layer, each with a loss. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.strategies.sharded.declare import asked

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags


AFTER = ("sharded",)


class Keys(Section):
    """The key of [model]."""

    mtp: Annotated[int, Field(ge=0, le=64)] | None = None
    """depths of multi-token prediction; each adds a layer after the last one and a loss"""


KEYS = {"model": Keys}


def depths(model: object) -> int:
    """Return the number of depths of a model, or of the section that describes it."""
    return cast("Keys", model).mtp or 0


def check(recipe: Recipe) -> None:
    """Raise InputError for what depths do not go with."""
    model, p, mtp = recipe.model, recipe.parallelism, depths(recipe.model)
    if not mtp:
        return
    if model.vocab == 0:
        raise InputError(
            "model.vocab = 0 leaves only the layers, without embedding, head and loss, so "
            "model.mtp must be 0"
        )
    for what, found in (
        ("model.blocks", model.blocks),
        ('model.position = "learned"', model.position == "learned"),
        (asked(p), asked(p) and p.zero != 2),
    ):
        if found:
            raise InputError(f"model.mtp = {mtp} is not simulated with {what}")


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return the number of depths."""
    mtp = flags.whole("--mtp-num-layers", least=0)
    return {"model": {"mtp": mtp}} if mtp else {}
