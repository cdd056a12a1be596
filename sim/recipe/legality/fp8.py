"""Whether a recipe's linears may run in fp8; each check says in one sentence why not."""

from __future__ import annotations

from schedules.input_error import InputError
from sim.recipe.recipe import Recipe


def check(recipe: Recipe) -> None:
    """Raise InputError for fp8 that does not go with the other keys."""
    fp8, training, p = recipe.training.fp8, recipe.training, recipe.parallelism
    if fp8 is None:
        return
    if recipe.model.blocks:
        raise InputError("training.fp8 is not simulated with model.blocks; leave it out")
    if training.dtype == "fp32":
        raise InputError('training.fp8 needs training.dtype = "bf16" or "fp16", not "fp32"')
    if fp8.attention:
        raise InputError("training.fp8.attention = true is not simulated yet; it must be false")
    if fp8.amax != "all" and fp8.recipe != "delayed":
        raise InputError(
            f'training.fp8.amax = "{fp8.amax}" needs recipe = "delayed", '
            f'as "{fp8.recipe}" reduces no maxima over replicas; leave it out'
        )
    if p.tp_overlap and p.tp > 1 and not fp8.gather:
        raise InputError(
            "training.fp8.gather = false is not simulated with parallelism.tp_overlap, "
            "which multiplies pieces as they arrive; one of them must change"
        )
    _widths(recipe, 32 if fp8.recipe == "mxfp8" else 16)


def _widths(recipe: Recipe, multiple: int) -> None:
    """Check what tensor cores need of both sizes of a matrix (``assert_dim_for_fp8_exec``)."""
    model, p = recipe.model, recipe.parallelism
    split = {
        "hidden": (model.hidden, 1),
        "ffn": (model.ffn, p.tp),
        "heads x head_dim": ((model.heads or 0) * (model.head_dim or 0), p.tp),
        "expert_ffn": (model.expert_ffn if model.experts else 0, p.etp),
    }
    for name, (size, degree) in split.items():
        if (size or 0) // degree % multiple:
            over = f" over {degree} GPUs" * (degree > 1)
            raise InputError(
                f"model.{name} = {size}{over} is not a multiple of {multiple}, as "
                "training.fp8 needs"
            )
