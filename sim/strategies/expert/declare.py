"""Expert parallelism: what its degrees need. They are axes of every job. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedules.input_error import InputError
from sim.strategies.tensor.declare import sp

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan

AFTER = ("context",)
CATALOGUE = {
    "parallelism.ep": ("expert parallel", "this many GPUs share the experts of a mixture"),
    "parallelism.etp": ("tensor parallel in experts", "this many GPUs share each expert"),
}


def check(recipe: Recipe) -> None:
    """Raise InputError for degrees that the experts or the ranks cannot be divided by."""
    model, p = recipe.model, recipe.parallelism
    if not model.experts:
        for name, degree in (("ep", p.ep), ("etp", p.etp)):
            if degree > 1:
                raise InputError(f"parallelism.{name} = {degree} needs model.experts to split")
        return
    group = p.tp * p.cp * (p.dp or 1)
    if group % (p.ep * p.etp):
        raise InputError(
            f"parallelism.ep x etp = {p.ep} x {p.etp} must divide the ranks of a stage, "
            f"tp x cp x dp = {group}"
        )
    _divided(recipe)
    if p.tp > 1 and not sp(p):
        raise InputError(
            "parallelism.sp must be true for model.experts with tp > 1: without it every "
            "tensor-parallel rank would route the same tokens"
        )
    if p.tp * p.ep * p.etp > 1 and not p.order.endswith("-pp"):
        raise InputError(
            f'parallelism.order = "{p.order}" must end with pp for model.experts with tp, ep or '
            f'etp > 1, such as "tp-cp-ep-dp-pp"'
        )


def _divided(recipe: Recipe) -> None:
    model, p = recipe.model, recipe.parallelism
    widths = {"ep": "experts", "etp": "expert_ffn"}
    for name, split in widths.items():
        size, degree = getattr(model, split), getattr(p, name)
        if size % degree:
            raise InputError(
                f"model.{split} = {size} cannot be split over parallelism.{name} = {degree}; "
                f"{name} must divide it"
            )
    shared = (model.shared_experts or 0) * (model.expert_ffn or 0)
    if shared % p.tp:
        raise InputError(
            f"model.shared_experts x expert_ffn = {shared} cannot be split over "
            f"parallelism.tp = {p.tp}; tp must divide it"
        )


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return the degrees; experts are split as the rest, unless said otherwise."""
    if not flags.whole("--num-experts", least=0):
        return {}
    tp = flags.whole("--tensor-model-parallel-size") or 1
    ep = flags.whole("--expert-model-parallel-size") or 1
    return {"parallelism": {"ep": ep, "etp": flags.whole("--expert-tensor-parallel-size") or tp}}


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return the degrees."""
    ep = titan.degree("expert_parallel_degree")
    etp = titan.degree("expert_tensor_parallel_degree")
    return {"parallelism": {"ep": ep, "etp": etp}} if ep > 1 else {}
