"""Linears in fp8: what they multiply, send and keep in 8 bits. See ``rewrite.py``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, cast

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.strategies.fp8.precision import Fp8
from sim.strategies.tp_overlap.declare import keys

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan

AFTER = ("mtp", "offload")


class Fp8Table(Section):
    """Which numbers the linears of the layers multiply in fp8, and which are sent and kept so."""

    recipe: Literal["delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"] = "delayed"
    """how tensors are scaled: by earlier maxima (delayed), their own (tensorwise), per row
    (rowwise) or per block (blockwise, mxfp8)"""
    format: Literal["hybrid", "e4m3"] | None = None
    """format of gradients: e5m2 (hybrid) or e4m3; it does not change the time"""
    params: bool = False
    """whether weights are kept and gathered in fp8, which saves their cast (fp8_param_gather)"""
    gather: bool = True
    """whether sequence parallelism's all-gathers carry fp8, as Transformer Engine's do"""
    transpose: bool = True
    """whether tensors have transposed copies, which Hopper's tensor cores need and Blackwell's do
    not"""
    amax: Literal["all", "tp", "none"] = "all"
    """delayed: the ranks over which maxima are reduced: all of a stage, tp, or none"""
    attention: bool = False
    """whether the attention core runs in fp8 too; not simulated yet"""


class Keys(Section):
    """The key of [training]."""

    fp8: Fp8Table | None = None
    """linears of the layers multiply in fp8: { recipe = "delayed", params = false, ... }"""


KEYS = {"training": Keys}
CATALOGUE = {
    "training.fp8": (
        "fp8",
        "linears of the layers multiply in 8 bits; gathers and kept inputs may have 8 bits too",
    )
}


def precision(training: object) -> Fp8 | None:
    """Return how linears run in fp8; None: not at all."""
    of = cast("Keys", training).fp8
    return Fp8(of.recipe, of.params, of.gather, of.transpose, of.amax) if of else None


def dtypes(recipe: Recipe) -> dict[str, str]:
    """Return the number format of the products, if they have one of their own."""
    return {"training.fp8": "fp8"} if precision(recipe.training) else {}


def check(recipe: Recipe) -> None:
    """Raise InputError for fp8 that does not go with the other keys."""
    training, p = recipe.training, recipe.parallelism
    fp8 = cast("Keys", training).fp8
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
    if keys(p).tp_overlap and p.tp > 1 and not fp8.gather:
        raise InputError(
            "training.fp8.gather = false is not simulated with parallelism.tp_overlap, "
            "which multiplies pieces as they arrive; one of them must change"
        )
    state = training.optimizer_state
    if state and fp8.params and state.master in ("none", "remainder", "bf16"):
        raise InputError(
            f'training.optimizer_state.master = "{state.master}" needs weights of 16 bits, and '
            'training.fp8.params = true keeps them in fp8; "fp32" would do'
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


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return the keys of fp8 for the linears; Transformer Engine gathers activations in fp8."""
    if not flags.text("--fp8-format"):
        return {}
    kinds = {kind: kind for kind in ("delayed", "tensorwise", "blockwise", "mxfp8")}
    for flag in ("--first-last-layers-bf16", "--no-fp8-wgrad", "--disable-fp8-wgrad"):
        if flags.on(flag):
            flags.refuse(f"{flag} is not simulated; all linears of the layers run in fp8")
    out: dict[str, Any] = {
        "format": flags.choice("--fp8-format", {"hybrid": "hybrid", "e4m3": "e4m3"}, "hybrid"),
        "recipe": flags.choice("--fp8-recipe", kinds, "delayed"),
        "params": flags.on("--fp8-param-gather"),
    }
    amax = {"amax": "tp"} if flags.on("--tp-only-amax-red") else {}
    return {"training": {"fp8": out | amax}}


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return what the converter of linears asks for; its table is [quantize.linear.…] in 2026."""
    said = titan.given.get("model.converters", [])
    listed = said.split(",") if isinstance(said, str) else titan.of(list, "model.converters", [])
    converters = " ".join(map(str, listed))
    if titan.of(bool, "float8.enable_float8_linear", default=False):  # 2024
        converters += " float8"
    if not re.search("float8|mx", converters):
        return {}
    if "float8" not in converters:
        return {"training": {"fp8": {"format": "e4m3", "recipe": "mxfp8"}}}
    table = "quantize.linear.float8" if "quantize.linear" in converters else "float8"
    kinds = {"tensorwise": "tensorwise", "rowwise": "rowwise"}
    kind = titan.choice(f"{table}.recipe_name", kinds, "tensorwise")
    params = titan.of(bool, f"{table}.enable_fsdp_float8_all_gather", default=False)
    by_tensor = kind == "tensorwise"  # with a scale per row torchao gathers 16 bits
    narrow = {"params": params and by_tensor, "gather": by_tensor}
    return {"training": {"fp8": {"format": "hybrid", "recipe": kind, **narrow}}}
