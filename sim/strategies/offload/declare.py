"""Offload: activations or the optimizer's state in host memory. See ``rewrite.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from schedules.input_error import InputError
from sim.keys.section import Section
from sim.strategies.mtp.declare import depths
from sim.strategies.sharded.declare import asked

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe
    from sim.recipe.sections import StateTable
    from sim.recipe.translate.flags import Flags
    from sim.recipe.translate.torchtitan_keys import Keys as Titan

AFTER = ("mtp", "sharded", "user_file")
WHAT = "training.offload of the optimizer is not simulated with"


class OffloadTable(Section):
    """What host memory keeps."""

    activations: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of the kept activations that is in host memory from the forward to the backward"""
    by: Literal["layer", "stage"] = "layer"
    """what is copied at a time: a layer, or a whole stage through buffers that stay on the GPU"""
    optimizer: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of the parameters whose optimizer state is in host memory and is updated by the CPU"""
    overlap: bool = False
    """whether updated parameters are copied back bucket by bucket, beside the next update"""


class Keys(Section):
    """The key of [training]."""

    offload: Literal["activations", "optimizer"] | OffloadTable | None = None
    """what host memory keeps: "activations" until their backward, "optimizer" (the CPU then
    updates), or a table"""


KEYS = {"training": Keys}
CATALOGUE = {
    "training.offload": (
        "offload",
        "host memory holds what layers keep, or the optimizer's state, which is updated there",
    )
}


def table(training: object) -> OffloadTable:
    """Return the key as a table; a word stands for a share of 1."""
    said = cast("Keys", training).offload
    if isinstance(said, OffloadTable):
        return said
    return OffloadTable.model_validate({said: 1.0} if said else {})


def check(recipe: Recipe) -> None:
    """Raise InputError for what the host cannot keep."""
    said, p, training = table(recipe.training), recipe.parallelism, recipe.training
    given = cast("Keys", training).offload
    if given and said.optimizer is None and said.activations is None:
        raise InputError("training.offload is empty; give activations or optimizer")
    if said.overlap and said.optimizer is None:
        raise InputError("training.offload.overlap needs training.offload.optimizer")
    if said.by == "stage" and said.activations is None:
        raise InputError('training.offload.by = "stage" needs training.offload.activations')
    if (mtp := depths(recipe.model)) and given:
        raise InputError(f"model.mtp = {mtp} is not simulated with training.offload")
    if training.foreach and given:
        raise InputError(
            "training.foreach = true is Adam in fp32 on the GPU; leave it out, or training.offload"
        )
    if not said.optimizer:
        return
    if shared := asked(p):
        raise InputError(f"{WHAT} {shared}; zero must be 0 or 1, without fsdp")
    if not recipe.flushed:
        raise InputError(f"{WHAT} {recipe.schedule.name}, which updates while others compute")
    if training.optimizer != "adam":
        raise InputError(f"{WHAT} training.optimizer = {training.optimizer!r}; adam would do")
    if not p.gradient_as_bucket_view:
        raise InputError(f"{WHAT} parallelism.gradient_as_bucket_view = false; leave it out")
    if training.optimizer_state:
        _state(training.optimizer_state)


def _state(state: StateTable) -> None:
    """Check the number formats that Adam on the CPU can have."""
    moments = ("fp32", "bf16")
    for name, able in {"master": ("fp32",), "first": moments, "second": moments}.items():
        said = getattr(state, name)
        if said not in able:
            choices = " or ".join(f'"{one}"' for one in able)
            raise InputError(
                f'training.optimizer_state.{name} = "{said}" is not simulated with training.offload'
                f" of the optimizer; {choices} would do"
            )


def megatron(flags: Flags) -> dict[str, dict[str, Any]]:
    """Return what goes to the host: all layers' activations, and a share of the optimizer."""
    out: dict[str, Any] = {}
    if flags.on("--optimizer-cpu-offload"):
        share = flags.number("--optimizer-offload-fraction")
        overlap = flags.on("--overlap-cpu-optimizer-d2h-h2d")
        out = {"optimizer": 1.0 if share is None else share, "overlap": overlap}
    if flags.whole("--cpu-offloading-num-layers", least=0):
        out["activations"] = 1.0
    words = {"optimizer": {"optimizer": 1.0, "overlap": False}, "activations": {"activations": 1.0}}
    word = next((word for word, meant in words.items() if out == meant), out)
    return {"training": {"offload": word}} if word else {}


def torchtitan(titan: Titan) -> dict[str, dict[str, Any]]:
    """Return FSDP's offload of parameters, which is no value of the key, so that it is refused."""
    on = titan.of(bool, "training.enable_cpu_offload", default=False)
    return {"training": {"offload": "parameters"}} if on else {}
