"""Predicts published figures: one function of a recipe per kind of figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.analysis.steps import steady
from sim.builder.activations import first_stage_bytes
from sim.model.sizes import BYTES, parameters
from sim.recipe.recipe import Recipe
from sim.recipe.sections import FsdpTable
from sim.runs.check import check
from sim.runs.run import job_of, run
from sim.runs.summary import step_seconds
from validation.layer import layer_timelines

ADAM = 12  # bytes per parameter: fp32 master weight, first and second moment


def step(recipe: Recipe) -> float:
    """Return the seconds of a step; where steps overlap, of one in the steady state."""
    return step_seconds(recipe, steady(run(recipe).timeline, *recipe.ramps))


def fsdp_time_saved(recipe: Recipe) -> float:
    """Return the share of a step's time that the recipe's sharding saves over default FSDP1."""
    parallelism = recipe.parallelism.model_copy(update={"fsdp": FsdpTable(kind="fsdp1")})
    return 1.0 - step(recipe) / step(recipe.model_copy(update={"parallelism": parallelism}))


def layer(phase: str) -> Callable[[Recipe], float]:
    """Return a function: seconds of one layer, F or B with what it recomputes."""
    return lambda recipe: layer_timelines(recipe)[phase].seconds


def middle_stage(phase: str) -> Callable[[Recipe], float]:
    """Return a function: seconds of the second stage, without embedding or head; F, I or W."""

    def seconds(recipe: Recipe) -> float:
        layers = job_of(recipe).layers_per_stage[1]
        return layer_timelines(recipe, layers)[phase].seconds

    return seconds


def state(recipe: Recipe) -> float:
    """Return the bytes of weights, gradients and optimizer of one rank's layers, without ZeRO."""
    job = job_of(recipe)
    layers = range(job.model.layers // job.mesh.pp)
    held = parameters(job.model, job.setting.tp, layers, first=False, last=False).total
    return float(held * (BYTES[job.data.dtype] + BYTES[job.data.grad_dtype] + ADAM))


def activations(recipe: Recipe) -> float:
    """Return the bytes of the layers' activations on the first pipeline rank at the peak."""
    job = job_of(recipe)
    pipeline = job.mesh.pp
    return first_stage_bytes(job.model, job.setting, pipeline, job.stages // pipeline)


def peak(recipe: Recipe) -> float:
    """Return the bytes at the peak of the rank that needs most."""
    return float(max(entry["peak_bytes"] for entry in check(recipe)["memory"]))


def peak_last(recipe: Recipe) -> float:
    """Return the bytes that the last pipeline rank holds at its peak."""
    return float(check(recipe)["memory"][-1]["peak_bytes"])


FIGURES: Mapping[str, Callable[[Recipe], float]] = {
    "step": step,
    "fsdp_time_saved": fsdp_time_saved,
    "layer_forward": layer("F"),
    "layer_backward": layer("B"),
    "stage_F": middle_stage("F"),
    "stage_I": middle_stage("I"),
    "stage_W": middle_stage("W"),
    "state": state,
    "activations": activations,
    "peak": peak,
    "peak_last": peak_last,
}
"""Each function by the name that tables give it; in seconds or bytes, or a share."""
